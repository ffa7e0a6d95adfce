(** Finite sums of real numbers over a list, and the Cauchy-Schwarz inequality for weighted sums.

    [sum f l] is the sum of [f s] over the entries [s] of the list [l]. *)

From Coq Require Import Reals Lra Psatz List.
Open Scope R_scope.

Section Sums.
Context {A : Type}.

Fixpoint sum (f : A -> R) (l : list A) : R :=
  match l with
  | nil => 0
  | cons s rest => f s + sum f rest
  end.

Lemma sum_ext (f h : A -> R) (l : list A) :
  (forall s, In s l -> f s = h s) -> sum f l = sum h l.
Proof.
  induction l as [| s l IH]; simpl; intros H; [reflexivity |].
  rewrite (H s) by auto. rewrite IH by auto. reflexivity.
Qed.

Lemma sum_plus (f h : A -> R) (l : list A) :
  sum (fun s => f s + h s) l = sum f l + sum h l.
Proof. induction l as [| s l IH]; simpl; [| rewrite IH]; ring. Qed.

Lemma sum_scale (c : R) (f : A -> R) (l : list A) :
  sum (fun s => c * f s) l = c * sum f l.
Proof. induction l as [| s l IH]; simpl; [| rewrite IH]; ring. Qed.

Lemma sum_le (f h : A -> R) (l : list A) :
  (forall s, In s l -> f s <= h s) -> sum f l <= sum h l.
Proof.
  induction l as [| s l IH]; simpl; intros H; [lra |].
  pose proof (H s (or_introl eq_refl)).
  assert (sum f l <= sum h l) by auto. lra.
Qed.

Lemma sum_nonneg (f : A -> R) (l : list A) :
  (forall s, In s l -> 0 <= f s) -> 0 <= sum f l.
Proof.
  induction l as [| s l IH]; simpl; intros H; [lra |].
  pose proof (H s (or_introl eq_refl)).
  assert (0 <= sum f l) by auto. lra.
Qed.

End Sums.

Lemma sum_map {A B : Type} (h : A -> B) (f : B -> R) (l : list A) : sum f (map h l) = sum (fun s => f (h s)) l.
Proof. induction l as [| s l IH]; simpl; [| rewrite IH]; reflexivity. Qed.

(** A parabola [a - 2 b t + c t^2] that is nowhere negative has no positive discriminant. *)
Lemma discriminant (a b c : R) :
  0 <= c -> (forall t, 0 <= a - 2 * b * t + c * (t * t)) -> b * b <= a * c.
Proof.
  intros Hc H. destruct (Req_dec c 0) as [-> | Nc].
  - (* a line that is nowhere negative is constant *)
    destruct (Req_dec b 0) as [-> | Nb]; [lra |].
    specialize (H ((a + 1) / (2 * b))).
    replace (a - 2 * b * ((a + 1) / (2 * b)) + 0 * ((a + 1) / (2 * b) * ((a + 1) / (2 * b)))) with (-1) in H
      by (field; exact Nb).
    lra.
  - (* its value at the vertex *)
    specialize (H (b / c)).
    replace (a - 2 * b * (b / c) + c * (b / c * (b / c))) with ((a * c - b * b) / c) in H by (field; exact Nc).
    assert (0 <= (a * c - b * b) / c * c) as H2 by (apply Rmult_le_pos; assumption).
    replace ((a * c - b * b) / c * c) with (a * c - b * b) in H2 by (field; exact Nc).
    lra.
Qed.

(** Cauchy-Schwarz in L^2 of the weights [p]. *)
Lemma weighted_cauchy_schwarz {A : Type} (p x y : A -> R) (l : list A) :
  (forall s, In s l -> 0 <= p s) ->
  sum (fun s => p s * (x s * y s)) l * sum (fun s => p s * (x s * y s)) l
  <= sum (fun s => p s * (x s * x s)) l * sum (fun s => p s * (y s * y s)) l.
Proof.
  intros Hp. apply discriminant.
  - apply sum_nonneg. intros s I. apply Rmult_le_pos; [auto | apply Rle_0_sqr].
  - intros t.
    replace (_ - _ + _) with (sum (fun s => p s * ((x s - t * y s) * (x s - t * y s))) l).
    + apply sum_nonneg. intros s I. apply Rmult_le_pos; [auto | apply Rle_0_sqr].
    + clear Hp. induction l as [| s l IH]; simpl; [ring |]. rewrite IH. ring.
Qed.
