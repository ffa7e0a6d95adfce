(** Real inner-product spaces: the axioms, the norm, Cauchy-Schwarz and the triangle inequality.

    Nothing is assumed of the dimension. R^n is an instance (Space.v). *)

From Coq Require Import Reals Lra Psatz List.
From FSPO Require Import Sums.
Open Scope R_scope.

(** The axioms of a real vector space with an inner product, and nothing more. *)
Record InnerProductSpace : Type := {
  vector :> Type;
  zero : vector;
  add : vector -> vector -> vector;
  scale : R -> vector -> vector;
  inner : vector -> vector -> R;
  add_comm : forall x y, add x y = add y x;
  add_assoc : forall x y z, add x (add y z) = add (add x y) z;
  add_zero : forall x, add x zero = x;
  add_opposite : forall x, add x (scale (-1) x) = zero;
  scale_one : forall x, scale 1 x = x;
  scale_scale : forall a b x, scale a (scale b x) = scale (a * b) x;
  scale_add : forall a x y, scale a (add x y) = add (scale a x) (scale a y);
  add_scale : forall a b x, scale (a + b) x = add (scale a x) (scale b x);
  inner_comm : forall x y, inner x y = inner y x;
  inner_add : forall x y z, inner (add x y) z = inner x z + inner y z;
  inner_scale : forall a x z, inner (scale a x) z = a * inner x z;
  inner_nonneg : forall x, 0 <= inner x x;
  inner_definite : forall x, inner x x = 0 -> x = zero;
}.

Arguments zero {_}.
Arguments add {_}.
Arguments scale {_}.
Arguments inner {_}.

Declare Scope vector_scope.
Delimit Scope vector_scope with vec.
Notation "x +v y" := (add x y) (at level 50, left associativity) : R_scope.
Notation "x -v y" := (add x (scale (-1) y)) (at level 50, left associativity) : R_scope.
Notation "c *v x" := (scale c x) (at level 40, left associativity) : R_scope.
Notation "<| x , y |>" := (inner x y) (at level 0, x at level 99, y at level 99) : R_scope.

Definition norm {V : InnerProductSpace} (x : V) : R := sqrt <| x, x |>.

(** The cosine of the angle between two vectors. Coq's division by zero is 0, so theorems that speak of a cosine
    also say that neither vector is zero. *)
Definition cosine {V : InnerProductSpace} (x y : V) : R := <| x, y |> / (norm x * norm y).

(** Sum of the vectors [f s] over a list. *)
Fixpoint vsum {A : Type} {V : InnerProductSpace} (f : A -> V) (l : list A) : V :=
  match l with
  | nil => zero
  | cons s rest => f s +v vsum f rest
  end.

Section Space.
Context {V : InnerProductSpace}.
Implicit Types x y z : V.

Lemma inner_zero z : <| @zero V, z |> = 0.
Proof. rewrite <- (add_opposite V zero), inner_add, inner_scale. ring. Qed.

Lemma inner_add_r x y z : <| z, x +v y |> = <| z, x |> + <| z, y |>.
Proof. rewrite (inner_comm V z), inner_add, (inner_comm V x), (inner_comm V y). reflexivity. Qed.

Lemma inner_scale_r c x z : <| z, c *v x |> = c * <| z, x |>.
Proof. rewrite (inner_comm V z), inner_scale, (inner_comm V x). reflexivity. Qed.

Lemma inner_vsum {A : Type} (f : A -> V) (l : list A) z :
  <| vsum f l, z |> = sum (fun s => <| f s, z |>) l.
Proof. induction l as [| s l IH]; simpl; [apply inner_zero | rewrite inner_add, IH; reflexivity]. Qed.

(** Two vectors with the same inner products are equal. Every vector identity below is proved this way: it becomes an
    identity of real numbers. *)
Lemma inner_extensional x y : (forall z, <| x, z |> = <| y, z |>) -> x = y.
Proof.
  intros H.
  assert (x -v y = zero) as D.
  { apply inner_definite. rewrite inner_add, inner_scale, H. ring. }
  rewrite <- (add_zero V x), <- (add_opposite V y), (add_comm V y), add_assoc, D, add_comm. apply add_zero.
Qed.

Lemma norm_nonneg x : 0 <= norm x.
Proof. apply sqrt_pos. Qed.

Lemma norm_square x : norm x * norm x = <| x, x |>.
Proof. apply sqrt_sqrt, inner_nonneg. Qed.

Lemma norm_zero : norm (@zero V) = 0.
Proof. unfold norm. rewrite inner_zero. apply sqrt_0. Qed.

Lemma norm_positive x : x <> zero -> 0 < norm x.
Proof.
  intros N. apply sqrt_lt_R0.
  destruct (Rle_lt_or_eq_dec _ _ (inner_nonneg V x)) as [P | E]; [exact P |].
  exfalso. apply N, inner_definite. auto.
Qed.

Lemma norm_scale c x : norm (c *v x) = Rabs c * norm x.
Proof.
  unfold norm. rewrite inner_scale, inner_scale_r, <- Rmult_assoc, sqrt_mult_alt by apply Rle_0_sqr.
  f_equal. apply sqrt_Rsqr_abs.
Qed.

(** Cauchy-Schwarz, squared and then with norms. *)
Theorem cauchy_schwarz_squared x y : <| x, y |> * <| x, y |> <= <| x, x |> * <| y, y |>.
Proof.
  apply discriminant; [apply inner_nonneg |]. intros t.
  replace (_ - _ + _) with <| x -v (t *v y), x -v (t *v y) |>; [apply inner_nonneg |].
  repeat rewrite ?inner_add, ?inner_add_r, ?inner_scale, ?inner_scale_r.
  rewrite (inner_comm V y x). ring.
Qed.

Theorem cauchy_schwarz x y : Rabs <| x, y |> <= norm x * norm y.
Proof.
  rewrite <- (Rabs_pos_eq (norm x * norm y)) by (apply Rmult_le_pos; apply norm_nonneg).
  apply Rsqr_le_abs_0. unfold Rsqr.
  replace (norm x * norm y * (norm x * norm y)) with (norm x * norm x * (norm y * norm y)) by ring.
  rewrite !norm_square. apply cauchy_schwarz_squared.
Qed.

Lemma triangle x y : norm (x +v y) <= norm x + norm y.
Proof.
  pose proof (norm_nonneg x) as Hx. pose proof (norm_nonneg y) as Hy.
  apply Rsqr_incr_0_var; [| lra]. unfold Rsqr.
  rewrite norm_square, inner_add, !inner_add_r, (inner_comm V y x), <- !norm_square.
  pose proof (Rle_trans _ _ _ (Rle_abs _) (cauchy_schwarz x y)). lra.
Qed.

Lemma self_bound x b : 0 <= b -> norm x * norm x <= b * norm x -> norm x <= b.
Proof. intros B H. pose proof (norm_nonneg x). destruct (Rle_dec (norm x) b); [assumption | nra]. Qed.

Lemma norm_vsum {A : Type} (f : A -> V) (l : list A) : norm (vsum f l) <= sum (fun s => norm (f s)) l.
Proof.
  induction l as [| s l IH]; simpl; [rewrite norm_zero; lra |].
  pose proof (triangle (f s) (vsum f l)). lra.
Qed.

(** A positive factor does not change a cosine. *)
Lemma cosine_scale c x y : 0 < c -> cosine (c *v x) y = cosine x y.
Proof.
  intros P. unfold cosine. rewrite inner_scale, norm_scale, Rabs_pos_eq by lra. unfold Rdiv.
  rewrite !Rinv_mult. transitivity ((c * / c) * (<| x, y |> * (/ norm x * / norm y))); [ring |].
  rewrite Rinv_r by lra. ring.
Qed.
End Space.

Lemma vsum_map {A B : Type} {V : InnerProductSpace} (h : A -> B) (f : B -> V) (l : list A) :
  vsum f (map h l) = vsum (fun s => f (h s)) l.
Proof. induction l as [| s l IH]; simpl; [| rewrite IH]; reflexivity. Qed.

(** Turn an identity of vectors into one of real numbers. *)
Ltac vector_identity :=
  apply inner_extensional; intros ?z;
  repeat rewrite ?inner_add, ?inner_scale, ?inner_vsum, ?inner_zero.
