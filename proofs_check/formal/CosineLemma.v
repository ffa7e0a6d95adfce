(** T7's cosine lemma in any real inner-product space.

    [g] is the true update and [g +v e] a multiple of the clipped one; [rho] bounds the error [e] relative to [g]. *)

From Coq Require Import Reals Lra Psatz List.
From FSPO Require Import Sums InnerProduct.
Open Scope R_scope.

(** The scalar core. With [a = <g,g>], [b = <g,e>], [c = <e,e>],
    (a+b)^2 - (1-rho^2) a (a+2b+c) = (b+rho^2 a)^2 + (1-rho^2) a (rho^2 a - c). *)
Lemma scalar_core (a b c rho : R) :
  0 <= rho < 1 -> 0 <= a -> c <= rho * rho * a ->
  (1 - rho * rho) * a * (a + 2 * b + c) <= (a + b) * (a + b).
Proof.
  intros Hr Ha Hc.
  assert (0 <= (1 - rho * rho) * a * (rho * rho * a - c)).
  { apply Rmult_le_pos; [apply Rmult_le_pos |]; nra. }
  pose proof (Rle_0_sqr (b + rho * rho * a)) as Q. unfold Rsqr in Q. lra.
Qed.

Section Lemma7.
Context {V : InnerProductSpace}.

Lemma inner_lower_bound (g e : V) (rho : R) :
  norm e <= rho * norm g -> (1 - rho) * (norm g * norm g) <= <| g, g +v e |>.
Proof.
  intros He. rewrite inner_add_r, <- norm_square.
  pose proof (cauchy_schwarz g e) as C. pose proof (Rle_abs (- <| g, e |>)) as D. rewrite Rabs_Ropp in D.
  pose proof (norm_nonneg g). nra.
Qed.

(** T7, the lemma: an error of at most [rho] times the true update leaves a cosine of at least sqrt(1 - rho^2). *)
Theorem T7_cosine_lemma (g e : V) (rho : R) :
  0 <= rho < 1 -> g <> zero -> norm e <= rho * norm g ->
  0 < <| g, g +v e |> /\ sqrt (1 - rho * rho) * (norm g * norm (g +v e)) <= <| g, g +v e |>.
Proof.
  intros Hr Hg He.
  pose proof (norm_positive g Hg) as Pg. pose proof (inner_lower_bound g e rho He) as Low.
  assert (0 < <| g, g +v e |>) as Pos.
  { apply (Rlt_le_trans _ ((1 - rho) * (norm g * norm g))); [| exact Low]. repeat apply Rmult_lt_0_compat; lra. }
  split; [exact Pos |].
  apply Rsqr_incr_0_var; [| lra]. unfold Rsqr.
  replace (_ * _) with
    (sqrt (1 - rho * rho) * sqrt (1 - rho * rho) * (norm g * norm g) * (norm (g +v e) * norm (g +v e))) by ring.
  rewrite sqrt_sqrt by nra. rewrite !norm_square.
  assert (<| e, e |> <= rho * rho * <| g, g |>) as Hc.
  { rewrite <- !norm_square. pose proof (norm_nonneg e). nra. }
  pose proof (scalar_core _ <| g, e |> _ rho Hr (inner_nonneg V g) Hc) as Core.
  repeat rewrite ?inner_add, ?inner_add_r. rewrite (inner_comm V e g). lra.
Qed.

(** The second bound is the weaker one: (1 + rho)^3 >= 1 - rho. *)
Theorem T7_weaker_bound (rho : R) : 0 <= rho < 1 -> (1 - rho) / (1 + rho) <= sqrt (1 - rho * rho).
Proof.
  intros Hr. set (y := (1 - rho) / (1 + rho)). assert (y * (1 + rho) = 1 - rho) as E by (unfold y; field; lra).
  assert (0 <= y <= 1) as Y by nra. rewrite <- (sqrt_square y) by lra. apply sqrt_le_1_alt.
  assert (y * y <= y) by nra. assert (y <= y * (1 + rho) * (1 + rho)) by nra. nra.
Qed.

(** T7 as a cosine. *)
Theorem T7_cosine_quotient (g e : V) (rho : R) :
  0 <= rho < 1 -> g <> zero -> norm e <= rho * norm g ->
  g +v e <> zero
  /\ sqrt (1 - rho * rho) <= cosine (g +v e) g
  /\ (1 - rho) / (1 + rho) <= cosine (g +v e) g.
Proof.
  intros Hr Hg He. destruct (T7_cosine_lemma g e rho Hr Hg He) as [Pos Low].
  assert (g +v e <> zero) as N.
  { intros E. rewrite E, (inner_comm V), inner_zero in Pos. lra. }
  pose proof (norm_positive g Hg). pose proof (norm_positive _ N).
  assert (sqrt (1 - rho * rho) <= cosine (g +v e) g) as Bound.
  { unfold cosine. apply (Rmult_le_reg_r (norm (g +v e) * norm g)); [apply Rmult_lt_0_compat; assumption |].
    unfold Rdiv. rewrite Rmult_assoc, Rinv_l, Rmult_1_r by nra.
    rewrite (Rmult_comm (norm (g +v e))), (inner_comm V (g +v e)). exact Low. }
  pose proof (T7_weaker_bound rho Hr). repeat split; try assumption; lra.
Qed.

End Lemma7.
