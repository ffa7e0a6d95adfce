(** Section 5 of the theory for finitely many strata: its definitions, T8, the three bounds of the length error, T7. *)

From Coq Require Import Reals Lra Psatz List.
From FSPO Require Import Sums InnerProduct CosineLemma.
Open Scope R_scope.

(** One length: its share [p], the normaliser [a] (a rate of acceptance), the true update [g] within it and the
    clipped one, E[M w A psi | L = l]. *)
Record stratum (V : InnerProductSpace) : Type := {
  p : R;
  a : R;
  g : vector V;
  clipped : vector V;
}.

Arguments p {V}.
Arguments a {V}.
Arguments g {V}.
Arguments clipped {V}.

Section Definitions.
Context {V : InnerProductSpace}.
Variable strata : list (stratum V).

(** Shares are a probability, normalisers are not negative and not all zero. *)
Definition admissible : Prop :=
  (forall s, In s strata -> 0 <= p s) /\ sum p strata = 1
  /\ (forall s, In s strata -> 0 <= a s) /\ 0 < sum (fun s => p s * a s) strata.

Definition a_bar : R := sum (fun s => p s * a s) strata.
Definition r (s : stratum V) : R := a s / a_bar - 1.

(** What clipping does inside a stratum beside its rate: c_l - a(l) g_l. *)
Definition inside (s : stratum V) : V := clipped s -v (a s *v g s).

Definition update : V := vsum (fun s => p s *v g s) strata.
Definition clipped_update : V := vsum (fun s => p s *v clipped s) strata.
Definition e_len : V := vsum (fun s => (p s * r s) *v (g s -v update)) strata.
Definition e_in : V := vsum (fun s => (p s / a_bar) *v inside s) strata.

(** The greatest |r(l)| over the strata with p(l) > 0. *)
Definition LRE_inf : R := fold_right (fun s m => Rmax (if Rlt_dec 0 (p s) then Rabs (r s) else 0) m) 0 strata.
Definition LRE_1 : R := sum (fun s => p s * Rabs (r s)) strata.
Definition LRE_2 : R := sqrt (sum (fun s => p s * (r s * r s)) strata).

(** The two constants of T7 are the least [k] that bound, in every direction [u], the mean distance of <g_l, u> from some
    number, and the spread of <g_l, u>: the largest eigenvalue of the covariance of the g_l is the square of the second
    one times the square of the norm of the update. *)
Definition bounds_inf (k : R) : Prop :=
  0 <= k /\ forall u : V, exists tau, sum (fun s => p s * Rabs (<| g s, u |> - tau)) strata <= k * norm update * norm u.
Definition bounds_2 (k : R) : Prop :=
  0 <= k /\ forall u : V,
  sum (fun s => p s * (<| g s -v update, u |> * <| g s -v update, u |>)) strata
  <= k * norm update * norm u * (k * norm update * norm u).
Definition eta : R := sum (fun s => p s * norm (inside s)) strata / (a_bar * norm update).

Definition rho (k_inf k_2 : R) : R := Rmin (LRE_inf * k_inf) (LRE_2 * k_2) + eta.
End Definitions.

Section Theorems.
Context {V : InnerProductSpace}.
Variable strata : list (stratum V).
Hypothesis ok : admissible strata.

Let p_nonneg : forall s, In s strata -> 0 <= p s.
Proof. apply ok. Qed.

Let a_bar_positive : 0 < a_bar strata.
Proof. apply ok. Qed.

(** The relative acceptances average to 0. *)
Lemma mean_r : sum (fun s => p s * r strata s) strata = 0.
Proof.
  destruct ok as (_ & P1 & _).
  rewrite (sum_ext _ (fun s => / a_bar strata * (p s * a s) + (-1) * p s)).
  - rewrite sum_plus, !sum_scale, P1. fold (a_bar strata). field. lra.
  - intros s _. unfold r. field. lra.
Qed.


(** The two forms of e_len agree: centring changes nothing. *)
Theorem T8_e_len_plain : e_len strata = vsum (fun s => (p s * r strata s) *v g s) strata.
Proof.
  unfold e_len. vector_identity.
  rewrite (sum_ext _ (fun s => <| p s * r strata s *v g s, z |>
                               + - <| update strata, z |> * (p s * r strata s))).
  - rewrite sum_plus, sum_scale, mean_r. ring.
  - intros s _. repeat rewrite ?inner_add, ?inner_scale. ring.
Qed.

(** T8: g_clip / a_bar = g + e_len + e_in. *)
Theorem T8_identity :
  / a_bar strata *v clipped_update strata = update strata +v e_len strata +v e_in strata.
Proof.
  rewrite T8_e_len_plain. unfold update, clipped_update, e_in, inside. vector_identity.
  rewrite <- sum_scale, <- !sum_plus. apply sum_ext. intros s _. repeat rewrite ?inner_add, ?inner_scale.
  unfold r. field. lra.
Qed.

(** LRE_inf bounds every |r(l)| with p(l) > 0 ... *)
Lemma LRE_inf_bounds (s : stratum V) : In s strata -> 0 < p s -> Rabs (r strata s) <= LRE_inf strata.
Proof.
  unfold LRE_inf. clear. generalize (r strata). intros rel. induction strata as [| t l IH]; simpl; [tauto |].
  intros [<- | I] Q; [destruct Rlt_dec; [apply Rmax_l | contradiction] |].
  eapply Rle_trans; [exact (IH I Q) | apply Rmax_r].
Qed.

(** ... and is one of them: it is their maximum. *)
Lemma LRE_inf_attained : exists s, In s strata /\ 0 < p s /\ LRE_inf strata = Rabs (r strata s).
Proof.
  assert (exists s, In s strata /\ 0 < p s) as (s0 & I0 & P0).
  { destruct ok as (Pp & P1 & _). clear - Pp P1.
    induction strata as [| s l IH]; simpl in *; [lra |].
    destruct (Rle_lt_or_eq_dec _ _ (Pp s (or_introl eq_refl))) as [L | E]; [exists s; auto |].
    destruct IH as (t & I & P); [auto | lra | exists t; auto]. }
  pose proof (LRE_inf_bounds s0 I0 P0) as B0. pose proof (Rabs_pos (r strata s0)).
  assert (forall h (l : list (stratum V)), let m := fold_right (fun s m => Rmax (h s) m) 0 l in
    m = 0 \/ exists s, In s l /\ m = h s) as H1.
  { intros h l. induction l as [| s l IH]; simpl in *; [auto |].
    apply Rmax_case; [right; exists s; auto | destruct IH as [Z | (t & I & E)]; eauto]. }
  destruct (H1 (fun s => if Rlt_dec 0 (p s) then Rabs (r strata s) else 0) strata) as [Z | (s & I & E)];
    fold (LRE_inf strata) in *; [exists s0; repeat split; auto; lra |].
  destruct Rlt_dec; [exists s; auto | exists s0; repeat split; auto; lra].
Qed.

Lemma LRE_inf_nonneg : 0 <= LRE_inf strata.
Proof. destruct LRE_inf_attained as (s & _ & _ & E). rewrite E. apply Rabs_pos. Qed.

(** The length error in a direction, with any number taken off <g_l, u>, because the relative acceptances average to 0. *)
Lemma e_len_along (u : V) (tau : R) :
  <| e_len strata, u |> = sum (fun s => p s * (r strata s * (<| g s, u |> - tau))) strata.
Proof.
  rewrite T8_e_len_plain, inner_vsum.
  rewrite (sum_ext (fun s => p s * (r strata s * (<| g s, u |> - tau)))
             (fun s => <| (p s * r strata s) *v g s, u |> + - tau * (p s * r strata s))).
  - rewrite sum_plus, sum_scale, mean_r. ring.
  - intros s _. rewrite inner_scale. ring.
Qed.

Hypothesis update_nonzero : update strata <> zero.

(** The two bounds of the length error. *)
Theorem T7_e_len_inf (k : R) : bounds_inf strata k -> norm (e_len strata) <= LRE_inf strata * k * norm (update strata).
Proof.
  intros (K & B). set (e := e_len strata). pose proof LRE_inf_nonneg as L. destruct (B e) as (tau & H).
  apply self_bound; [repeat apply Rmult_le_pos; auto using norm_nonneg |].
  rewrite norm_square. unfold e at 1. rewrite (e_len_along e tau).
  apply (Rle_trans _ (LRE_inf strata * sum (fun s => p s * Rabs (<| g s, e |> - tau)) strata)); [| nra].
  rewrite <- sum_scale. apply sum_le. intros s I.
  destruct (Rle_lt_or_eq_dec _ _ (p_nonneg s I)) as [P | <-]; [| lra].
  pose proof (LRE_inf_bounds s I P) as R0. pose proof (Rle_abs (r strata s * (<| g s, e |> - tau))) as A.
  rewrite Rabs_mult in A. pose proof (Rabs_pos (<| g s, e |> - tau)).
  assert (Rabs (r strata s) * Rabs (<| g s, e |> - tau) <= LRE_inf strata * Rabs (<| g s, e |> - tau)) by nra. nra.
Qed.

Lemma LRE_2_square : LRE_2 strata * LRE_2 strata = sum (fun s => p s * (r strata s * r strata s)) strata.
Proof.
  apply sqrt_sqrt, sum_nonneg. intros s I. apply Rmult_le_pos; [auto | apply Rle_0_sqr].
Qed.

Theorem T7_e_len_2 (k : R) : bounds_2 strata k -> norm (e_len strata) <= LRE_2 strata * k * norm (update strata).
Proof.
  intros (K & B). set (e := e_len strata). assert (0 <= LRE_2 strata) as L by apply sqrt_pos.
  apply self_bound; [repeat apply Rmult_le_pos; auto using norm_nonneg |].
  apply Rsqr_incr_0_var; [| repeat apply Rmult_le_pos; auto using norm_nonneg]. unfold Rsqr.
  rewrite norm_square. unfold e at 1 3. rewrite !(e_len_along e <| update strata, e |>).
  rewrite !(sum_ext (fun s => p s * (r strata s * (<| g s, e |> - <| update strata, e |>)))
    (fun s => p s * (r strata s * <| g s -v update strata, e |>)))
    by (intros; rewrite inner_add, inner_scale; ring).
  eapply Rle_trans; [apply (weighted_cauchy_schwarz p (r strata)); exact p_nonneg |].
  rewrite <- LRE_2_square. pose proof (B e) as C. set (bound := k * norm (update strata) * norm e) in C.
  replace (_ * norm e * _) with (LRE_2 strata * LRE_2 strata * (bound * bound)) by (unfold bound; ring).
  apply Rmult_le_compat_l; [nra | exact C].
Qed.

(** One centre [c] for all directions gives a first constant: the page's last bound. *)
Theorem T7_one_centre (c : V) : bounds_inf strata (sum (fun s => p s * norm (g s -v c)) strata / norm (update strata)).
Proof.
  pose proof (norm_positive _ update_nonzero). split.
  { apply Rmult_le_pos; [| apply Rlt_le, Rinv_0_lt_compat; assumption].
    apply sum_nonneg. intros. apply Rmult_le_pos; auto using norm_nonneg. }
  intros u. exists <| c, u |>.
  replace (_ / _ * _ * norm u) with (norm u * sum (fun s => p s * norm (g s -v c)) strata) by (field; lra).
  rewrite <- sum_scale. apply sum_le. intros s I. pose proof (cauchy_schwarz (g s -v c) u) as C.
  rewrite inner_add, inner_scale in C. replace (<| g s, u |> - <| c, u |>) with (<| g s, u |> + -1 * <| c, u |>) by ring.
  pose proof (p_nonneg s I). nra.
Qed.

Theorem T7_e_in_eta : norm (e_in strata) <= eta strata * norm (update strata).
Proof.
  pose proof (norm_positive _ update_nonzero). unfold e_in, eta.
  eapply Rle_trans; [apply norm_vsum |].
  right. transitivity (/ a_bar strata * sum (fun s => p s * norm (inside s)) strata); [| field; lra].
  rewrite <- sum_scale. apply sum_ext. intros s I. rewrite norm_scale, Rabs_pos_eq; [field; lra |].
  apply Rmult_le_pos; [auto | apply Rlt_le, Rinv_0_lt_compat; exact a_bar_positive].
Qed.

Variables k_inf k_2 : R.
Hypothesis first : bounds_inf strata k_inf.
Hypothesis second : bounds_2 strata k_2.

(** The error of the clipped update, both parts together. *)
Theorem T7_error_bound : norm (e_len strata +v e_in strata) <= rho strata k_inf k_2 * norm (update strata).
Proof.
  eapply Rle_trans; [apply triangle |]. unfold rho. rewrite Rmult_plus_distr_r.
  apply Rplus_le_compat; [| apply T7_e_in_eta].
  pose proof (T7_e_len_inf k_inf first). pose proof (T7_e_len_2 k_2 second).
  unfold Rmin. destruct Rle_dec; assumption.
Qed.

(** T7 for finite strata: the cosine of the clipped update itself. *)
Theorem T7_finite_strata :
  rho strata k_inf k_2 < 1 ->
  clipped_update strata <> zero
  /\ sqrt (1 - rho strata k_inf k_2 * rho strata k_inf k_2) <= cosine (clipped_update strata) (update strata)
  /\ (1 - rho strata k_inf k_2) / (1 + rho strata k_inf k_2) <= cosine (clipped_update strata) (update strata).
Proof.
  intros Hr. pose proof (norm_positive _ update_nonzero) as Pn.
  assert (0 <= rho strata k_inf k_2) as Pr.
  { pose proof T7_error_bound. pose proof (norm_nonneg (e_len strata +v e_in strata)). nra. }
  destruct (T7_cosine_quotient (update strata) (e_len strata +v e_in strata) (rho strata k_inf k_2))
    as (N & C1 & C2); [split; [exact Pr | exact Hr] | exact update_nonzero | exact T7_error_bound |].
  rewrite add_assoc, <- T8_identity in N, C1, C2.
  rewrite cosine_scale in C1, C2 by (apply Rinv_0_lt_compat; exact a_bar_positive).
  repeat split; try assumption.
  intros Z. apply N. rewrite Z. vector_identity. ring.
Qed.
End Theorems.

(** The same strata with other rates of acceptance, and nothing lost inside them. *)
Definition with_rates {V : InnerProductSpace} (rate : stratum V -> R) (strata : list (stratum V)) : list (stratum V) :=
  map (fun s => {| p := p s; a := rate s; g := g s; clipped := rate s *v g s |}) strata.

(** T7's constants are the least: for small x there are rates of acceptance that reach them in any direction [u]. *)
Section Attained.
Context {V : InnerProductSpace}.
Variables (strata : list (stratum V)) (u : V) (x : R) (t : stratum V -> R).
Hypothesis shares : forall s, In s strata -> 0 <= p s.
Hypothesis total : sum p strata = 1.
Hypothesis balanced : sum (fun s => p s * t s) strata = 0.
Hypothesis small : forall s, In s strata -> 0 <= 1 + x * t s.
Let rated := with_rates (fun s => 1 + x * t s) strata.

Lemma rated_a_bar : a_bar rated = 1.
Proof.
  unfold a_bar, rated, with_rates. rewrite sum_map. simpl.
  rewrite (sum_ext _ (fun s => p s + x * (p s * t s))) by (intros; ring). rewrite sum_plus, sum_scale, balanced, total. ring.
Qed.

Lemma rated_admissible : admissible rated.
Proof.
  unfold admissible. fold (a_bar rated). rewrite rated_a_bar. unfold rated, with_rates. rewrite sum_map. simpl.
  repeat split; [| exact total | | lra]; intros s I; apply in_map_iff in I; destruct I as (s0 & <- & I0); simpl; auto.
Qed.

Lemma rated_update : update rated = update strata.
Proof. unfold update, rated, with_rates. rewrite vsum_map. reflexivity. Qed.

Lemma rated_e_len : <| e_len rated, u |> = x * sum (fun s => p s * (t s * <| g s, u |>)) strata.
Proof.
  rewrite (e_len_along rated rated_admissible u 0). unfold r. rewrite rated_a_bar.
  unfold rated, with_rates. rewrite sum_map, <- sum_scale. apply sum_ext. intros s _. simpl. field.
Qed.

(** If [t] is the sign of <g_l, u> - tau, LRE_inf is at most x and the length error x times the mean of |<g_l, u> - tau|;
    [balanced] says that tau is a median, with a number in [-1, 1] as the sign of 0. *)
Theorem T7_kappa_inf_attained (tau : R) :
  0 <= x -> (forall s, In s strata -> Rabs (t s) <= 1) ->
  (forall s, In s strata -> t s * (<| g s, u |> - tau) = Rabs (<| g s, u |> - tau)) ->
  admissible rated /\ update rated = update strata /\ LRE_inf rated <= x
  /\ x * sum (fun s => p s * Rabs (<| g s, u |> - tau)) strata <= norm (e_len rated) * norm u.
Proof.
  intros Hx T S. split; [exact rated_admissible |]. split; [exact rated_update |]. split.
  - destruct (LRE_inf_attained rated rated_admissible) as (s & I & _ & E). rewrite E. unfold r. rewrite rated_a_bar.
    unfold rated, with_rates in I. apply in_map_iff in I. destruct I as (s0 & <- & I0). simpl.
    replace ((1 + x * t s0) / 1 - 1) with (x * t s0) by field.
    rewrite Rabs_mult, (Rabs_pos_eq x) by exact Hx. pose proof (T s0 I0). nra.
  - apply (Rle_trans _ <| e_len rated, u |>); [| eapply Rle_trans; [apply Rle_abs | apply cauchy_schwarz]].
    rewrite rated_e_len. apply Rmult_le_compat_l; [exact Hx |]. right.
    rewrite (sum_ext (fun s => p s * (t s * <| g s, u |>))
               (fun s => p s * Rabs (<| g s, u |> - tau) + tau * (p s * t s))) by (intros; rewrite <- S by assumption; ring).
    rewrite sum_plus, sum_scale, balanced. ring.
Qed.
End Attained.

(** If r is x times <g_l - g, u> over its standard deviation, LRE_2 is x and the length error x times that deviation. *)
Theorem T7_kappa_2_attained {V : InnerProductSpace} (strata : list (stratum V)) (u : V) (x spread : R) :
  let t s := <| g s -v update strata, u |> / spread in
  let rated := with_rates (fun s => 1 + x * t s) strata in
  (forall s, In s strata -> 0 <= p s) -> sum p strata = 1 -> (forall s, In s strata -> 0 <= 1 + x * t s) ->
  0 <= x -> 0 < spread ->
  sum (fun s => p s * (<| g s -v update strata, u |> * <| g s -v update strata, u |>)) strata = spread * spread ->
  admissible rated /\ update rated = update strata /\ LRE_2 rated = x
  /\ x * spread <= norm (e_len rated) * norm u.
Proof.
  intros t rated Hp P1 Small Hx Hs Q.
  assert (sum (fun s => p s * t s) strata = 0) as Balanced.
  { rewrite (sum_ext _ (fun s => / spread * (<| p s *v g s, u |> + - <| update strata, u |> * p s)))
      by (intros; unfold t; rewrite inner_add, !inner_scale; field; lra).
    rewrite sum_scale, sum_plus, sum_scale, P1, <- inner_vsum. fold (update strata). ring. }
  assert (sum (fun s => p s * (t s * t s)) strata = 1) as One.
  { rewrite (sum_ext _ (fun s => / (spread * spread) * (p s * (<| g s -v update strata, u |> * <| g s -v update strata, u |>))))
      by (intros; unfold t; field; lra). rewrite sum_scale, Q. field. lra. }
  split; [apply rated_admissible; assumption |]. split; [apply rated_update |]. split.
  - unfold LRE_2, r, rated. rewrite rated_a_bar by assumption. unfold with_rates. rewrite sum_map. simpl.
    rewrite (sum_ext _ (fun s => x * x * (p s * (t s * t s)))) by (intros; field).
    rewrite sum_scale, One, Rmult_1_r. apply sqrt_square. exact Hx.
  - apply (Rle_trans _ <| e_len rated, u |>); [| eapply Rle_trans; [apply Rle_abs | apply cauchy_schwarz]].
    unfold rated. rewrite rated_e_len by assumption. apply Rmult_le_compat_l; [exact Hx |]. right.
    rewrite (sum_ext _ (fun s => spread * (p s * (t s * t s)) + <| update strata, u |> * (p s * t s))).
    + rewrite sum_plus, !sum_scale, One, Balanced. ring.
    + intros s _. assert (<| g s, u |> = spread * t s + <| update strata, u |>) as ->; [| ring].
      unfold t. rewrite inner_add, inner_scale. field. lra.
Qed.
