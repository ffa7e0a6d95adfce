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
  pose proof (LRE_inf_nonneg strata ok) as N.
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

(** Section 3: over all shares LRE_inf is at most max a / min a - 1. *)
Theorem LRE_inf_over_shares (low high : R) :
  0 < low -> (forall s, In s strata -> low <= a s <= high) -> LRE_inf strata <= high / low - 1.
Proof.
  intros L H. replace (high / low - 1) with ((high - low) / low) by (field; lra).
  apply LRE_inf_range; [exact L | intros s I; apply H; exact I |].
  intros s t I T. pose proof (H s I). pose proof (H t T). lra.
Qed.

(** T3: acceptances within B of a_0 give LRE_inf <= 2 B / (a_0 - B). *)
Theorem T3_two_sided (a_0 B : R) :
  B < a_0 -> (forall s, In s strata -> Rabs (a s - a_0) <= B) -> LRE_inf strata <= 2 * B / (a_0 - B).
Proof.
  intros Hb H. replace (2 * B / (a_0 - B)) with ((a_0 + B) / (a_0 - B) - 1) by (field; lra).
  apply LRE_inf_over_shares; [lra |]. intros s I. pose proof (H s I) as A. unfold Rabs in A. destruct Rcase_abs; lra.
Qed.

(** ... and B / (a_0 - B) if also no two acceptances differ by more than B (all drift errors of one sign). *)
Theorem T3_one_sided (a_0 B : R) :
  B < a_0 -> (forall s, In s strata -> Rabs (a s - a_0) <= B) ->
  (forall s t, In s strata -> In t strata -> a s - a t <= B) -> LRE_inf strata <= B / (a_0 - B).
Proof.
  intros Hb H D. apply LRE_inf_range; [lra | | exact D].
  intros s I. pose proof (H s I) as A. unfold Rabs in A. destruct Rcase_abs; lra.
Qed.
End Norms.

(** Two lengths, accepted at the rates [high] and [low], the first with the share [share]. *)
Definition two_rates {V : InnerProductSpace} (share high low : R) : list (stratum V) :=
  cons {| p := share; a := high; g := zero; clipped := zero |}
    (cons {| p := 1 - share; a := low; g := zero; clipped := zero |} nil).

Lemma two_rates_admissible {V : InnerProductSpace} (share high low : R) :
  0 < share < 1 -> 0 < low -> low <= high -> admissible (@two_rates V share high low).
Proof.
  intros S L H. unfold admissible, two_rates. simpl. repeat split; try lra.
  - intros s [<- | [<- | []]]; simpl; lra.
  - intros s [<- | [<- | []]]; simpl; lra.
  - assert (0 < share * high) by nra. assert (0 < (1 - share) * low) by nra. lra.
Qed.

(** ... and that bound is the supremum: nothing smaller bounds LRE_inf over all shares. *)
Theorem LRE_inf_supremum {V : InnerProductSpace} (low high bound : R) :
  0 < low -> low <= high -> bound < high / low - 1 ->
  exists share, 0 < share < 1 /\ admissible (@two_rates V share high low)
    /\ bound < LRE_inf (@two_rates V share high low).
Proof.
  intros L H B. set (gap := high / low - 1 - bound). assert (0 < gap) as G by (unfold gap; lra).
  set (K := high * (high - low)). assert (0 <= K) as K0 by (unfold K; apply Rmult_le_pos; lra).
  assert (0 < gap * (low * low)) as P by (apply Rmult_lt_0_compat; nra).
  set (share := gap * (low * low) / (2 * (K + gap * (low * low)))).
  assert (0 < share) as S0 by (unfold share; apply Rmult_lt_0_compat; [exact P | apply Rinv_0_lt_compat; lra]).
  assert (share * (2 * (K + gap * (low * low))) = gap * (low * low)) as E by (unfold share; field; lra).
  assert (share < 1) as S1 by nra.
  exists share. pose proof (two_rates_admissible (V := V) share high low (conj S0 S1) L H) as Ok.
  split; [lra |]. split; [exact Ok |].
  set (first := {| p := share; a := high; g := @zero V; clipped := zero |}).
  apply (Rlt_le_trans _ (r (two_rates share high low) first)).
  2: { eapply Rle_trans; [apply Rle_abs | apply LRE_inf_bounds; [left; reflexivity | exact S0]]. }
  unfold r, a_bar, two_rates. simpl. set (mean := share * high + ((1 - share) * low + 0)).
  assert (low <= mean) as M by (unfold mean; nra).
  (* high / low - high / mean = share K / (low mean) <= share K / low^2 < gap *)
  assert (high / low - high / mean <= share * K / (low * low)) as D.
  { replace (high / low - high / mean) with (share * K / (low * mean)); [| unfold K, mean in *; field; lra].
    apply Rmult_le_compat_l; [apply Rmult_le_pos; lra | apply Rinv_le_contravar; nra]. }
  assert (share * K / (low * low) < gap) as D2.
  { apply (Rmult_lt_reg_r (low * low)); [nra |]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l, Rmult_1_r by nra. nra. }
  unfold gap in D2. lra.
Qed.
