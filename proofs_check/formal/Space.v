(** R^n with the dot product is an inner-product space, so T7 holds there. *)

From Coq Require Import Reals Lra Psatz List.
From Coq Require Vector.
From FSPO Require Import Sums InnerProduct CosineLemma Strata.
Import ListNotations.
Open Scope R_scope.

Definition dot {n : nat} (x y : Vector.t R n) : R := Vector.fold_right Rplus (Vector.map2 Rmult x y) 0.

Section Coordinates.
Variable n : nat.
Implicit Types x y z : Vector.t R n.

Definition zeros : Vector.t R n := Vector.const 0 n.
Definition plus x y := Vector.map2 Rplus x y.
Definition times (c : R) x := Vector.map (Rmult c) x.

(* Identities that hold coordinate by coordinate. *)
Ltac coordinates :=
  intros; apply Vector.eq_nth_iff; intros i ? <-; unfold plus, times, zeros;
  repeat first [erewrite Vector.nth_map2 by reflexivity | erewrite Vector.nth_map by reflexivity
               | rewrite Vector.const_nth]; ring.

Lemma plus_comm x y : plus x y = plus y x. Proof. coordinates. Qed.
Lemma plus_assoc x y z : plus x (plus y z) = plus (plus x y) z. Proof. coordinates. Qed.
Lemma plus_zeros x : plus x zeros = x. Proof. coordinates. Qed.
Lemma plus_opposite x : plus x (times (-1) x) = zeros. Proof. coordinates. Qed.
Lemma times_one x : times 1 x = x. Proof. coordinates. Qed.
Lemma times_times a b x : times a (times b x) = times (a * b) x. Proof. coordinates. Qed.
Lemma times_plus a x y : times a (plus x y) = plus (times a x) (times a y). Proof. coordinates. Qed.
Lemma plus_times a b x : times (a + b) x = plus (times a x) (times b x). Proof. coordinates. Qed.
End Coordinates.

Lemma dot_comm (n : nat) (x y : Vector.t R n) : dot x y = dot y x.
Proof. unfold dot. f_equal. apply Vector.eq_nth_iff. intros i ? <-. erewrite !Vector.nth_map2 by reflexivity. ring. Qed.

Lemma dot_cons (n : nat) a b (x y : Vector.t R n) :
  dot (Vector.cons _ a _ x) (Vector.cons _ b _ y) = a * b + dot x y.
Proof. reflexivity. Qed.

Lemma dot_plus (n : nat) (x y z : Vector.t R n) : dot (plus n x y) z = dot x z + dot y z.
Proof.
  revert z. pattern n, x, y. apply Vector.rect2; clear n x y.
  - intros z. pattern z. apply Vector.case0. unfold dot, plus. simpl. ring.
  - intros n x y IH a b z. rewrite (Vector.eta z).
    change (plus (S n) (Vector.cons _ a _ x) (Vector.cons _ b _ y)) with (Vector.cons _ (a + b) _ (plus n x y)).
    rewrite !dot_cons, IH. ring.
Qed.

Lemma dot_times (n : nat) (c : R) (x z : Vector.t R n) : dot (times n c x) z = c * dot x z.
Proof.
  pattern n, x, z. apply Vector.rect2; clear n x z.
  - unfold dot. simpl. ring.
  - intros n x z IH a b.
    change (times (S n) c (Vector.cons _ a _ x)) with (Vector.cons _ (c * a) _ (times n c x)).
    rewrite !dot_cons, IH. ring.
Qed.

Lemma dot_nonneg (n : nat) (x : Vector.t R n) : 0 <= dot x x.
Proof.
  induction x as [| a n x IH]; [unfold dot; simpl; lra |].
  rewrite dot_cons. pose proof (Rle_0_sqr a). unfold Rsqr in *. lra.
Qed.

Lemma dot_definite (n : nat) (x : Vector.t R n) : dot x x = 0 -> x = zeros n.
Proof.
  induction x as [| a n x IH]; [reflexivity |]. rewrite dot_cons. intros H.
  pose proof (Rle_0_sqr a) as Q. unfold Rsqr in Q. pose proof (dot_nonneg n x).
  unfold zeros. simpl. f_equal.
  - apply Rsqr_0_uniq. unfold Rsqr. lra.
  - apply IH. lra.
Qed.

(** R^n. *)
Definition Rn (n : nat) : InnerProductSpace := {|
  vector := Vector.t R n; zero := zeros n; add := plus n; scale := times n; inner := dot;
  add_comm := plus_comm n; add_assoc := plus_assoc n; add_zero := plus_zeros n; add_opposite := plus_opposite n;
  scale_one := times_one n; scale_scale := times_times n; scale_add := times_plus n; add_scale := plus_times n;
  inner_comm := dot_comm n; inner_add := dot_plus n; inner_scale := dot_times n;
  inner_nonneg := dot_nonneg n; inner_definite := dot_definite n |}.

(** T7 for vectors of n real numbers. *)
Theorem T7_finite_strata_Rn (n : nat) (strata : list (stratum (Rn n))) (k_inf k_2 : R) :
  admissible strata -> update strata <> zeros n -> bounds_inf strata k_inf -> bounds_2 strata k_2 ->
  rho strata k_inf k_2 < 1 ->
  sqrt (1 - rho strata k_inf k_2 * rho strata k_inf k_2) <= cosine (clipped_update strata) (update strata).
Proof. intros H1 H2 H3 H4 H5. exact (proj1 (proj2 (T7_finite_strata (V := Rn n) strata H1 H2 k_inf k_2 H3 H4 H5))). Qed.
