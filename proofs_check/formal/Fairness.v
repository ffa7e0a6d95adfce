(** Section 3 and the algebra of T1, T3: orders of the LRE norms, what they measure, and bounds on LRE_inf. *)

From Coq Require Import Reals Lra Psatz List.
From FSPO Require Import Sums InnerProduct CosineLemma Strata.
Open Scope R_scope.

Section Norms.
Context {V : InnerProductSpace}.
Variable strata : list (stratum V).
Hypothesis ok : admissible strata.

(** Shares of the lengths of accepted responses. *)
Definition q (s : stratum V) : R := p s * a s / a_bar strata.

Let p_nonneg : forall s, In s strata -> 0 <= p s.
Proof. apply ok. Qed.

Let a_bar_positive : 0 < a_bar strata.
Proof. apply ok. Qed.

Lemma shares_accepted : sum q strata = 1.
Proof.
  rewrite (sum_ext q (fun s => / a_bar strata * (p s * a s))).
  - rewrite sum_scale. fold (a_bar strata). field. lra.
  - intros s _. unfold q. field. lra.
Qed.

(** LRE_1 is twice the total variation between q and p. *)
Theorem LRE_1_is_total_variation : LRE_1 strata = sum (fun s => Rabs (q s - p s)) strata.
Proof.
  apply sum_ext. intros s I. replace (q s - p s) with (p s * r strata s) by (unfold q, r; field; lra).
  rewrite Rabs_mult, (Rabs_pos_eq (p s)) by auto. reflexivity.
Qed.

(** LRE_2 is the root of the chi-squared divergence of q from p. *)
Theorem LRE_2_is_chi_squared :
  (forall s, In s strata -> 0 < p s) ->
  LRE_2 strata = sqrt (sum (fun s => (q s - p s) * (q s - p s) / p s) strata).
Proof.
  intros P. unfold LRE_2. f_equal. apply sum_ext. intros s I. pose proof (P s I). unfold q, r. field. lra.
Qed.

Theorem LRE_1_le_LRE_2 : LRE_1 strata <= LRE_2 strata.
Proof.
  unfold LRE_2. apply Rsqr_incr_0_var; [| apply sqrt_pos].
  rewrite Rsqr_sqrt by (apply sum_nonneg; intros s I; apply Rmult_le_pos; [auto | apply Rle_0_sqr]).
  pose proof (weighted_cauchy_schwarz p (fun _ => 1) (fun s => Rabs (r strata s)) strata p_nonneg) as C.
  rewrite (sum_ext (fun s => p s * (1 * Rabs (r strata s))) (fun s => p s * Rabs (r strata s))) in C
    by (intros; ring).
  rewrite (sum_ext (fun s => p s * (1 * 1)) p) in C by (intros; ring).
  rewrite (sum_ext (fun s => p s * (Rabs (r strata s) * Rabs (r strata s)))
             (fun s => p s * (r strata s * r strata s))) in C
    by (intros; rewrite <- Rabs_mult, (Rabs_pos_eq (_ * _)) by apply Rle_0_sqr; reflexivity).
  destruct ok as (_ & P1 & _). rewrite P1 in C. unfold LRE_1, Rsqr. lra.
Qed.

Theorem LRE_2_le_LRE_inf : LRE_2 strata <= LRE_inf strata.
Proof.
  pose proof (LRE_inf_nonneg strata) as N.
  rewrite <- (sqrt_square (LRE_inf strata)) by exact N. unfold LRE_2. apply sqrt_le_1_alt.
  destruct ok as (_ & P1 & _).
  replace (LRE_inf strata * LRE_inf strata) with (sum (fun s => LRE_inf strata * LRE_inf strata * p s) strata)
    by (rewrite sum_scale, P1; ring).
  apply sum_le. intros s I.
  destruct (Rle_lt_or_eq_dec _ _ (p_nonneg s I)) as [P | <-]; [| lra].
  pose proof (LRE_inf_bounds strata s I P) as B.
  assert (r strata s * r strata s <= LRE_inf strata * LRE_inf strata)
    by (apply Rsqr_le_abs_1; rewrite (Rabs_pos_eq (LRE_inf strata)); assumption).
  nra.
Qed.

(** LRE_inf = 0 exactly when all lengths are accepted alike. *)
Theorem LRE_inf_zero_iff :
  LRE_inf strata = 0 <-> forall s, In s strata -> 0 < p s -> a s = a_bar strata.
Proof.
  split.
  - intros Z s I P. pose proof (LRE_inf_bounds strata s I P) as B. rewrite Z in B.
    assert (r strata s = 0) as E by (unfold Rabs in B; destruct Rcase_abs; lra).
    unfold r in E. apply (Rmult_eq_reg_r (/ a_bar strata)); [| apply Rinv_neq_0_compat; lra].
    rewrite Rinv_r by lra. unfold Rdiv in E. lra.
  - intros H. destruct (LRE_inf_attained strata ok) as (s & I & P & E). rewrite E.
    unfold r. rewrite (H s I P). unfold Rdiv. rewrite Rinv_r by lra.
    rewrite Rminus_diag_eq by reflexivity. apply Rabs_R0.
Qed.

(** A mean lies between bounds of its terms. *)
Lemma mean_between (low high : R) :
  (forall s, In s strata -> low <= a s <= high) -> low <= a_bar strata <= high.
Proof.
  intros H. destruct ok as (_ & P1 & _).
  assert (forall c, sum (fun s => c * p s) strata = c) as M by (intros; rewrite sum_scale, P1; ring).
  split; [rewrite <- (M low) | rewrite <- (M high)]; apply sum_le; intros s I;
    pose proof (H s I); pose proof (p_nonneg s I); nra.
Qed.

(** The step of T3: acceptances that differ by at most [range] and are at least [low] > 0. *)
Lemma LRE_inf_range (low range : R) :
  0 < low -> (forall s, In s strata -> low <= a s) ->
  (forall s t, In s strata -> In t strata -> a s - a t <= range) -> LRE_inf strata <= range / low.
Proof.
  intros L H D. destruct (LRE_inf_attained strata ok) as (s & I & P & E). rewrite E.
  assert (low <= a_bar strata) as Low.
  { destruct ok as (_ & P1 & _). replace low with (sum (fun s => low * p s) strata) by (rewrite sum_scale, P1; ring).
    apply sum_le. intros t T. pose proof (H t T). pose proof (p_nonneg t T). nra. }
  assert (a s - range <= a_bar strata <= a s + range) as Near.
  { apply mean_between. intros t T. pose proof (D s t I T). pose proof (D t s T I). lra. }
  assert (Rabs (a s - a_bar strata) <= range) as Abs by (apply Rabs_le; lra).
  assert (0 <= range) as R0 by (pose proof (Rabs_pos (a s - a_bar strata)); lra).
  replace (r strata s) with ((a s - a_bar strata) * / a_bar strata) by (unfold r; field; lra).
  rewrite Rabs_mult, (Rabs_pos_eq (/ _)) by (apply Rlt_le, Rinv_0_lt_compat; lra).
  apply Rmult_le_compat; [apply Rabs_pos | apply Rlt_le, Rinv_0_lt_compat; lra | exact Abs |].
  apply Rinv_le_contravar; lra.
Qed.

(** T3: acceptances within B of a_0 give LRE_inf <= 2 B / (a_0 - B). *)
Theorem T3_T4_two_sided (a_0 B : R) :
  B < a_0 -> (forall s, In s strata -> Rabs (a s - a_0) <= B) -> LRE_inf strata <= 2 * B / (a_0 - B).
Proof.
  intros Hb H. assert (forall s, In s strata -> a_0 - B <= a s <= a_0 + B) as Box.
  { intros s I. pose proof (H s I) as A. unfold Rabs in A. destruct Rcase_abs; lra. }
  apply LRE_inf_range; [lra | intros s I; apply Box; exact I |].
  intros s t I T. pose proof (Box s I). pose proof (Box t T). lra.
Qed.

(** ... and B / (a_0 - B) if also no two acceptances differ by more than B (all drift errors of one sign). *)
Theorem T3_T4_one_sided (a_0 B : R) :
  B < a_0 -> (forall s, In s strata -> Rabs (a s - a_0) <= B) ->
  (forall s t, In s strata -> In t strata -> a s - a t <= B) -> LRE_inf strata <= B / (a_0 - B).
Proof.
  intros Hb H D. apply LRE_inf_range; [lra | | exact D].
  intros s I. pose proof (H s I) as A. unfold Rabs in A. destruct Rcase_abs; lra.
Qed.

(** Section 3: over all shares LRE_inf is at most max a / min a - 1. *)
Theorem LRE_inf_over_shares (low high : R) :
  0 < low -> (forall s, In s strata -> low <= a s <= high) -> LRE_inf strata <= high / low - 1.
Proof.
  intros L H. replace (high / low - 1) with ((high - low) / low) by (field; lra).
  apply LRE_inf_range; [exact L | intros s I; apply H; exact I |].
  intros s t I T. pose proof (H s I). pose proof (H t T). lra.
Qed.
End Norms.
