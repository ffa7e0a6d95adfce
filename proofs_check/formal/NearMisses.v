(** Near misses: statements next to the proved ones, each with the numbers at which it is false. *)

From Coq Require Import Reals Lra Psatz List.
From FSPO Require Import Sums InnerProduct CosineLemma Strata Space Fairness Sharp.
Import ListNotations.
Open Scope R_scope.

(** T7 with a constant that is better by any factor below 1. *)
Theorem T7_better_constant_is_false (factor : R) :
  0 <= factor < 1 ->
  ~ (forall (strata : list (stratum (Rn 2))) k_inf k_2, T7_hypotheses strata k_inf k_2 -> rho strata k_inf k_2 < 1 ->
       sqrt (1 - (factor * rho strata k_inf k_2) * (factor * rho strata k_inf k_2))
       <= cosine (clipped_update strata) (update strata)).
Proof.
  intros Hf H.
  pose proof (T7_best_bound (fun x => sqrt (1 - factor * x * (factor * x))) H (1 / 2)) as B.
  assert (sqrt (1 - factor * (1 / 2) * (factor * (1 / 2))) <= sqrt (1 - 1 / 2 * (1 / 2))) as B2 by (apply B; lra).
  apply sqrt_le_0 in B2; nra.
Qed.

(** T7 with the LRE alone. *)
Theorem T7_without_kappa_is_false :
  ~ (forall (strata : list (stratum (Rn 2))) k_inf k_2, T7_hypotheses strata k_inf k_2 -> LRE_inf strata + eta strata < 1 ->
       sqrt (1 - (LRE_inf strata + eta strata) * (LRE_inf strata + eta strata))
       <= cosine (clipped_update strata) (update strata)).
Proof.
  intros H.
  destruct (T7_sharp_in_R2 (1 / 2) (1 / 4)) as (strata & k & Ok & L & E & _ & C); [lra | lra |].
  specialize (H strata k k Ok). rewrite L, E, C in H.
  assert (1 / 4 + 0 < 1) as Small by lra. specialize (H Small). apply sqrt_le_0 in H; lra.
Qed.

(** One stratum with an error inside it, - x g. *)
Definition one_stratum {V : InnerProductSpace} (x : R) (u : V) : list (stratum V) :=
  [ {| p := 1; a := 1; g := u; clipped := (1 - x) *v u |} ].

Lemma one_facts {V : InnerProductSpace} (x : R) (u : V) : 0 <= x -> u <> zero ->
  let strata := one_stratum x u in
  T7_hypotheses strata 0 0 /\ LRE_inf strata = 0 /\ rho strata 0 0 = x
  /\ clipped_update strata = (1 - x) *v update strata.
Proof.
  intros Hx Nu strata.
  pose proof (norm_positive u Nu) as P.
  assert (update strata = u) as Hu by (unfold update, strata, one_stratum; simpl; vector_identity; ring).
  assert (forall s, In s strata -> r strata s = 0) as Hr.
  { intros s [<- | []]. unfold r, a_bar. simpl. field. }
  assert (admissible strata) as Ok.
  { repeat split; simpl; try lra; intros s [<- | []]; simpl; lra. }
  assert (LRE_inf strata = 0) as L.
  { destruct (LRE_inf_attained strata Ok) as (s & I & _ & E). rewrite E, (Hr s I). apply Rabs_R0. }
  assert (forall s, In s strata -> norm (inside s) = x * norm u) as D.
  { intros s [<- | []]. transitivity (norm (- x *v u)).
    - f_equal. unfold inside. simpl. vector_identity. ring.
    - rewrite norm_scale, Rabs_Ropp, Rabs_pos_eq by exact Hx. reflexivity. }
  assert (eta strata = x) as E.
  { unfold eta. rewrite Hu. unfold a_bar. simpl. rewrite D by (left; reflexivity). field. lra. }
  split; [split; [exact Ok |]; split; [rewrite Hu; exact Nu |]; split |].
  - split; [lra |]. intros w. exists <| u, w |>. simpl. rewrite Rminus_diag_eq, Rabs_R0 by reflexivity. lra.
  - split; [lra |]. intros w. rewrite Hu. simpl.
    rewrite inner_add, inner_scale. replace (<| u, w |> + -1 * <| u, w |>) with 0 by ring. lra.
  - split; [exact L |]. split; [unfold rho; rewrite E, !Rmult_0_r, Rmin_left by lra; ring |].
    rewrite Hu. unfold clipped_update, strata, one_stratum. simpl. vector_identity. ring.
Qed.

(** T7 with eta left out: at LRE 0 the two updates may point opposite ways. *)
Theorem T7_without_eta_is_false :
  ~ (forall (strata : list (stratum (Rn 2))) k_inf k_2, T7_hypotheses strata k_inf k_2 -> LRE_inf strata * k_inf < 1 ->
       sqrt (1 - (LRE_inf strata * k_inf) * (LRE_inf strata * k_inf))
       <= cosine (clipped_update strata) (update strata)).
Proof.
  intros H. destruct (one_facts 2 (R2 1 0)) as (Ok & L & _ & C); [lra | exact R2_nonzero |].
  specialize (H _ _ _ Ok). rewrite L, Rmult_0_l in H. assert (0 < 1) as S by lra. specialize (H S).
  rewrite C in H. replace (1 - 0 * 0) with 1 in H by ring. rewrite sqrt_1 in H.
  destruct Ok as (_ & N & _). pose proof (norm_positive _ N) as P.
  unfold cosine in H. rewrite inner_scale, norm_scale, <- norm_square in H.
  rewrite Rabs_left in H by lra.
  replace ((1 - 2) * _ / _) with (-1) in H by (field; lra). lra.
Qed.

(** T7 at rho = 1: the clipped update may vanish. *)
Theorem T7_at_one_is_false :
  ~ (forall (strata : list (stratum (Rn 2))) k_inf k_2, T7_hypotheses strata k_inf k_2 -> rho strata k_inf k_2 <= 1 ->
       clipped_update strata <> zero).
Proof.
  intros H. destruct (one_facts 1 (R2 1 0)) as (Ok & _ & E & C); [lra | exact R2_nonzero |].
  apply (H _ _ _ Ok); [lra |]. rewrite C. vector_identity. ring.
Qed.

(** T8 without the part inside. *)
Theorem T8_without_e_in_is_false :
  ~ (forall strata : list (stratum (Rn 2)),
       admissible strata -> / a_bar strata *v clipped_update strata = update strata +v e_len strata).
Proof.
  intros H. destruct (one_facts 1 (R2 1 0)) as ((Ok & N & _) & L & _ & C); [lra | exact R2_nonzero |].
  specialize (H _ Ok). rewrite C in H. apply N. apply inner_extensional. intros z.
  pose proof (T7_e_len_inf _ Ok _ (T7_one_centre _ Ok N zero)) as E. rewrite L, !Rmult_0_l in E.
  assert (e_len (one_stratum 1 (R2 1 0)) = zero) as Z.
  { apply inner_definite. rewrite <- norm_square. pose proof (norm_nonneg (e_len (one_stratum 1 (R2 1 0)))). nra. }
  rewrite Z, add_zero in H. rewrite <- H, !inner_scale, inner_zero. ring.
Qed.

(** Shares 1/4 and 3/4, rates 7/4 and 3/4, and updates 4 and 0 in one direction. *)
Definition uneven {V : InnerProductSpace} (u : V) : list (stratum V) :=
  [ stratum_of (1 / 4) (7 / 4) (4 *v u); stratum_of (3 / 4) (3 / 4) (0 *v u) ].

Lemma uneven_facts {V : InnerProductSpace} (u : V) : let strata := uneven u in
  admissible strata /\ update strata = u /\ LRE_inf strata = 3 / 4 /\ LRE_1 strata = 3 / 8
  /\ LRE_2 strata * LRE_2 strata = 3 / 16 /\ 0 <= LRE_2 strata /\ e_len strata = 3 / 4 *v u
  /\ sum (fun s => p s * norm (g s -v zero)) strata = norm u.
Proof.
  intros strata. assert (admissible strata) as Ok.
  { repeat split; simpl; try lra; intros s [<- | [<- | []]]; simpl; lra. }
  assert (a_bar strata = 1) as M by (unfold a_bar, strata, uneven; simpl; field).
  assert (update strata = u) as U by (unfold update, strata, uneven; simpl; vector_identity; field).
  split; [exact Ok |]. split; [exact U |].
  rewrite (LRE_2_square strata Ok). unfold LRE_inf, LRE_1, e_len, r. rewrite M, U. unfold strata, uneven. simpl.
  rewrite (Rabs_pos_eq (7 / 4 / 1 - 1)), (Rabs_left (3 / 4 / 1 - 1)) by lra. split.
  { repeat (destruct Rlt_dec; [| lra]). rewrite (Rmax_left _ 0) by lra. rewrite Rmax_left; lra. }
  split; [field |]. split; [field |]. split; [apply sqrt_pos |]. split; [vector_identity; field |].
  replace (norm (4 *v u -v zero)) with (4 * norm u).
  2: { transitivity (norm (4 *v u)); [rewrite norm_scale, Rabs_pos_eq by lra; reflexivity |].
       f_equal. vector_identity. ring. }
  replace (norm (0 *v u -v zero)) with 0; [field |].
  transitivity (norm (@zero V)); [symmetry; exact norm_zero | f_equal; vector_identity; ring].
Qed.

(** T7's first bound with LRE_2 in the place of LRE_inf. *)
Theorem T7_LRE_2_kappa_inf_is_false :
  ~ (forall (strata : list (stratum (Rn 2))) k, admissible strata -> update strata <> zero -> bounds_inf strata k ->
       norm (e_len strata) <= LRE_2 strata * k * norm (update strata)).
Proof.
  intros H. destruct (uneven_facts (R2 1 0)) as (Ok & U & _ & _ & S & P & E & D).
  assert (update (uneven (R2 1 0)) <> zero) as N by (rewrite U; exact R2_nonzero).
  specialize (H _ _ Ok N (T7_one_centre _ Ok N zero)). rewrite D, E, U, norm_scale, norm_one, Rabs_pos_eq in H by lra. nra.
Qed.

(** The orders of the norms, turned round. *)
Theorem LRE_inf_le_LRE_2_is_false :
  ~ (forall strata : list (stratum (Rn 2)), admissible strata -> LRE_inf strata <= LRE_2 strata).
Proof. intros H. destruct (uneven_facts (R2 1 0)) as (Ok & _ & L & _ & S & P & _). specialize (H _ Ok). rewrite L in H. nra. Qed.

Theorem LRE_2_le_LRE_1_is_false :
  ~ (forall strata : list (stratum (Rn 2)), admissible strata -> LRE_2 strata <= LRE_1 strata).
Proof. intros H. destruct (uneven_facts (R2 1 0)) as (Ok & _ & _ & L & S & P & _). specialize (H _ Ok). rewrite L in H. nra. Qed.

(** T3 with errors of both signs and the bound for errors of one sign: a_0 = .9, B = .1, shares .1 and .9. *)
Theorem T3_one_sided_with_mixed_signs_is_false :
  ~ (forall (strata : list (stratum (Rn 2))) (a_0 B : R), admissible strata ->
       B < a_0 -> (forall s, In s strata -> Rabs (a s - a_0) <= B) -> LRE_inf strata <= B / (a_0 - B)).
Proof.
  intros H. set (strata := @two_rates (Rn 2) (1 / 10) 1 (8 / 10)).
  assert (admissible strata) as Ok by (apply two_rates_admissible; lra).
  specialize (H strata (9 / 10) (1 / 10) Ok).
  assert (LRE_inf strata <= 1 / 10 / (9 / 10 - 1 / 10)) as L.
  { apply H; [lra |]. intros s [<- | [<- | []]]; simpl; apply Rabs_le; lra. }
  pose proof (LRE_inf_bounds strata {| p := 1 / 10; a := 1; g := zero; clipped := zero |} (or_introl eq_refl)) as B.
  replace (r strata _) with (9 / 41) in B by (unfold r, a_bar, strata, two_rates; cbn [sum p a]; field).
  rewrite Rabs_pos_eq in B by lra. cbn [p] in B. lra.
Qed.
