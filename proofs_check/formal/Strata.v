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

(** Shares are a probability, acceptances are not negative and not all zero, and a stratum with [a = 0] has no clipped
    gradient. (The last is the convention of section 5.) *)
Definition admissible : Prop :=
  (forall s, In s strata -> 0 <= p s) /\ sum p strata = 1
  /\ (forall s, In s strata -> 0 <= a s) /\ 0 < sum (fun s => p s * a s) strata
  /\ (forall s, In s strata -> a s = 0 -> clipped s = zero).

Definition a_bar : R := sum (fun s => p s * a s) strata.
Definition r (s : stratum V) : R := a s / a_bar - 1.

(** delta_l, from E[M w A psi | l] = a(l) (g_l + delta_l) where a(l) <> 0, and 0 elsewhere. *)
Definition delta (s : stratum V) : V :=
  if Req_EM_T (a s) 0 then zero else (/ a s *v clipped s) -v g s.

Definition update : V := vsum (fun s => p s *v g s) strata.
Definition clipped_update : V := vsum (fun s => p s *v clipped s) strata.
Definition e_len : V := vsum (fun s => (p s * r s) *v (g s -v update)) strata.
Definition e_in : V := vsum (fun s => (p s * (a s / a_bar)) *v delta s) strata.

(** The greatest |r(l)| over the strata with p(l) > 0. *)
Definition LRE_inf : R := fold_right (fun s m => if Rlt_dec 0 (p s) then Rmax (Rabs (r s)) m else m) 0 strata.
Definition LRE_1 : R := sum (fun s => p s * Rabs (r s)) strata.
Definition LRE_2 : R := sqrt (sum (fun s => p s * (r s * r s)) strata).

Definition kappa : R := sum (fun s => p s * norm (g s)) strata / norm update.
Definition kappa_c : R := sum (fun s => p s * norm (g s -v update)) strata / norm update.
Definition kappa_c2 : R := sqrt (sum (fun s => p s * (norm (g s -v update) * norm (g s -v update))) strata) / norm update.
Definition eta : R := sum (fun s => p s * (a s / a_bar) * norm (delta s)) strata / norm update.

Definition rho : R := Rmin (Rmin (LRE_inf * kappa) (LRE_inf * kappa_c)) (LRE_2 * kappa_c2) + eta.
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

(** [delta] is what section 5 says that it is. *)
Lemma delta_defined (s : stratum V) : In s strata -> clipped s = a s *v (g s +v delta s).
Proof.
  destruct ok as (_ & _ & _ & _ & C). intros I.
  unfold delta. destruct (Req_EM_T (a s) 0) as [E | N].
  - rewrite (C s I E), E. vector_identity. ring.
  - vector_identity. field. exact N.
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
  rewrite T8_e_len_plain. unfold update, clipped_update, e_in. vector_identity.
  rewrite <- sum_scale, <- !sum_plus. apply sum_ext. intros s I.
  rewrite (delta_defined s I) at 1. repeat rewrite ?inner_add, ?inner_scale.
  unfold r. field. lra.
Qed.

Lemma LRE_inf_nonneg : 0 <= LRE_inf strata.
Proof.
  unfold LRE_inf. clear. generalize (r strata). intros rel.
  induction strata as [| s l IH]; simpl; [lra |].
  destruct (Rlt_dec 0 (p s)); [| exact IH].
  apply (Rle_trans _ (Rabs (rel s))); [apply Rabs_pos | apply Rmax_l].
Qed.

(** LRE_inf bounds every |r(l)| with p(l) > 0 ... *)
Lemma LRE_inf_bounds (s : stratum V) : In s strata -> 0 < p s -> Rabs (r strata s) <= LRE_inf strata.
Proof.
  unfold LRE_inf. clear. generalize (r strata). intros rel.
  induction strata as [| t l IH]; simpl; [tauto |]. intros [<- | I] P.
  - destruct (Rlt_dec 0 (p t)); [apply Rmax_l | contradiction].
  - destruct (Rlt_dec 0 (p t)); [| auto]. apply (Rle_trans _ _ _ (IH I P)). apply Rmax_r.
Qed.

(** ... and is one of them: it is their maximum. *)
Lemma LRE_inf_attained : exists s, In s strata /\ 0 < p s /\ LRE_inf strata = Rabs (r strata s).
Proof.
  assert (exists s, In s strata /\ 0 < p s) as (s0 & I0 & P0).
  { destruct ok as (Pp & P1 & _). clear - Pp P1.
    induction strata as [| s l IH]; simpl in *; [lra |].
    destruct (Rle_lt_or_eq_dec _ _ (Pp s (or_introl eq_refl))) as [L | E]; [exists s; auto |].
    destruct IH as (t & I & P); [auto | lra | exists t; auto]. }
  unfold LRE_inf. generalize (r strata). intros rel. clear - I0 P0.
  assert (forall l, (exists s, In s l /\ 0 < p s /\
     fold_right (fun s m => if Rlt_dec 0 (p s) then Rmax (Rabs (rel s)) m else m) 0 l = Rabs (rel s))
     \/ (forall s, In s l -> ~ 0 < p s) /\
     fold_right (fun s m => if Rlt_dec 0 (p s) then Rmax (Rabs (rel s)) m else m) 0 l = 0) as H.
  { induction l as [| s l IH]; simpl; [right; tauto |].
    destruct (Rlt_dec 0 (p s)) as [P | N].
    - left. destruct IH as [(t & I & Pt & E) | (_ & E)]; rewrite E.
      + unfold Rmax. destruct (Rle_dec (Rabs (rel s)) (Rabs (rel t))); [exists t | exists s]; auto.
      + exists s. repeat split; auto. apply Rmax_left, Rabs_pos.
    - destruct IH as [(t & I & Pt & E) | (A & E)]; [left; exists t; auto |].
      right. split; [| exact E]. intros t [<- | I]; auto. }
  destruct (H strata) as [H1 | (H1 & _)]; [exact H1 | exfalso; exact (H1 s0 I0 P0)].
Qed.

(** A weighted sum of vectors with relative acceptances as factors. *)
Lemma weighted_norm (x : stratum V -> V) :
  norm (vsum (fun s => (p s * r strata s) *v x s) strata)
  <= sum (fun s => p s * (Rabs (r strata s) * norm (x s))) strata.
Proof.
  eapply Rle_trans; [apply norm_vsum |]. apply sum_le. intros s I.
  rewrite norm_scale, Rabs_mult, (Rabs_pos_eq (p s)) by auto. lra.
Qed.

Lemma weighted_norm_inf (x : stratum V -> V) :
  norm (vsum (fun s => (p s * r strata s) *v x s) strata)
  <= LRE_inf strata * sum (fun s => p s * norm (x s)) strata.
Proof.
  eapply Rle_trans; [apply weighted_norm |]. rewrite <- sum_scale. apply sum_le. intros s I.
  pose proof (norm_nonneg (x s)).
  destruct (Rle_lt_or_eq_dec _ _ (p_nonneg s I)) as [P | <-]; [| lra].
  pose proof (LRE_inf_bounds s I P).
  assert (Rabs (r strata s) * norm (x s) <= LRE_inf strata * norm (x s)) by nra. nra.
Qed.

Lemma weighted_norm_2 (x : stratum V -> V) :
  norm (vsum (fun s => (p s * r strata s) *v x s) strata)
  <= LRE_2 strata * sqrt (sum (fun s => p s * (norm (x s) * norm (x s))) strata).
Proof. unfold LRE_2. apply norm_weighted. exact p_nonneg. Qed.

Hypothesis update_nonzero : update strata <> zero.

(** The three bounds of the length error. *)
Theorem T7_e_len_kappa : norm (e_len strata) <= LRE_inf strata * kappa strata * norm (update strata).
Proof.
  pose proof (norm_positive _ update_nonzero). rewrite T8_e_len_plain.
  eapply Rle_trans; [apply weighted_norm_inf |]. unfold kappa. right. field. lra.
Qed.

Theorem T7_e_len_kappa_c : norm (e_len strata) <= LRE_inf strata * kappa_c strata * norm (update strata).
Proof.
  pose proof (norm_positive _ update_nonzero). unfold e_len.
  eapply Rle_trans; [apply weighted_norm_inf |]. unfold kappa_c. right. field. lra.
Qed.

Theorem T7_e_len_kappa_c2 : norm (e_len strata) <= LRE_2 strata * kappa_c2 strata * norm (update strata).
Proof.
  pose proof (norm_positive _ update_nonzero). unfold e_len.
  eapply Rle_trans; [apply weighted_norm_2 |]. unfold kappa_c2. right. field. lra.
Qed.

Theorem T7_e_in_eta : norm (e_in strata) <= eta strata * norm (update strata).
Proof.
  pose proof (norm_positive _ update_nonzero). unfold e_in, eta.
  eapply Rle_trans; [apply norm_vsum |].
  apply (Rle_trans _ (sum (fun s => p s * (a s / a_bar strata) * norm (delta s)) strata)); [| right; field; lra].
  right. apply sum_ext. intros s I. rewrite norm_scale, Rabs_pos_eq; [reflexivity |].
  apply Rmult_le_pos; [auto |]. apply Rmult_le_pos; [| apply Rlt_le, Rinv_0_lt_compat; exact a_bar_positive].
  apply ok; exact I.
Qed.

Lemma rho_nonneg : 0 <= rho strata.
Proof.
  pose proof (norm_positive _ update_nonzero) as N.
  pose proof (norm_nonneg (e_len strata)) as E.
  assert (forall x, norm (e_len strata) <= x * norm (update strata) -> 0 <= x) as Pos by (intros; nra).
  pose proof (Pos _ T7_e_len_kappa). pose proof (Pos _ T7_e_len_kappa_c). pose proof (Pos _ T7_e_len_kappa_c2).
  assert (0 <= eta strata) by (pose proof T7_e_in_eta; pose proof (norm_nonneg (e_in strata)); nra).
  unfold rho. apply Rplus_le_le_0_compat; [| assumption]. repeat apply Rmin_glb; assumption.
Qed.

(** The error of the clipped update, both parts together. *)
Theorem T7_error_bound :
  norm (e_len strata +v e_in strata) <= rho strata * norm (update strata).
Proof.
  pose proof (norm_positive _ update_nonzero) as N.
  eapply Rle_trans; [apply triangle |]. unfold rho. rewrite Rmult_plus_distr_r.
  apply Rplus_le_compat; [| apply T7_e_in_eta].
  pose proof T7_e_len_kappa. pose proof T7_e_len_kappa_c. pose proof T7_e_len_kappa_c2.
  unfold Rmin. repeat destruct Rle_dec; assumption.
Qed.

(** T7 for finite strata: the cosine of the clipped update itself. *)
Theorem T7_finite_strata :
  rho strata < 1 ->
  clipped_update strata <> zero
  /\ sqrt (1 - rho strata * rho strata) <= cosine (clipped_update strata) (update strata)
  /\ (1 - rho strata) / (1 + rho strata) <= cosine (clipped_update strata) (update strata).
Proof.
  intros Hr.
  destruct (T7_cosine_quotient (update strata) (e_len strata +v e_in strata) (rho strata))
    as (N & C1 & C2); [split; [apply rho_nonneg | exact Hr] | exact update_nonzero | exact T7_error_bound |].
  rewrite add_assoc, <- T8_identity in N, C1, C2.
  rewrite cosine_scale in C1, C2 by (apply Rinv_0_lt_compat; exact a_bar_positive).
  repeat split; try assumption.
  intros Z. apply N. rewrite Z. vector_identity. ring.
Qed.
End Theorems.
