(** T7s: two strata reach T7's bound exactly, so no better bound holds; and no term of rho can be left out. *)

From Coq Require Import Reals Lra Psatz List.
From FSPO Require Import Sums InnerProduct CosineLemma Strata Space.
Import ListNotations.
Open Scope R_scope.

(** The two strata of T7s: p = 1/2, r = +eps and -eps, g_1 - g = v = -(g_2 - g), no loss inside. *)
Definition stratum_of {V : InnerProductSpace} (share rate : R) (x : V) : stratum V :=
  {| p := share; a := rate; g := x; clipped := rate *v x |}.

Definition two_strata {V : InnerProductSpace} (eps : R) (u v : V) : list (stratum V) :=
  [ stratum_of (1 / 2) (1 + eps) (u +v v); stratum_of (1 / 2) (1 - eps) (u -v v) ].

Section TwoStrata.
Context {V : InnerProductSpace}.
Variables (eps : R) (u v : V).
Hypothesis eps_range : 0 < eps < 1.
Let first := stratum_of (1 / 2) (1 + eps) (u +v v).
Let second := stratum_of (1 / 2) (1 - eps) (u -v v).
Let strata := two_strata eps u v.

Lemma two_sum (f : stratum V -> R) : sum f strata = f first + (f second + 0).
Proof. reflexivity. Qed.

Lemma two_vsum (f : stratum V -> V) : vsum f strata = f first +v (f second +v zero).
Proof. reflexivity. Qed.

Lemma two_admissible : admissible strata.
Proof. unfold strata, two_strata. repeat split; simpl; try lra; intros s [<- | [<- | []]]; simpl; lra. Qed.

Lemma two_a_bar : a_bar strata = 1.
Proof. unfold a_bar. rewrite two_sum. simpl. field. Qed.

Lemma two_update : update strata = u.
Proof. unfold update. rewrite two_vsum. simpl. vector_identity. field. Qed.

Lemma two_clipped : clipped_update strata = u +v (eps *v v).
Proof. unfold clipped_update. rewrite two_vsum. simpl. vector_identity. field. Qed.

Lemma two_r_first : r strata first = eps.
Proof. unfold r. rewrite two_a_bar. simpl. field. Qed.

Lemma two_r_second : r strata second = - eps.
Proof. unfold r. rewrite two_a_bar. simpl. field. Qed.

Lemma two_LRE_inf : LRE_inf strata = eps.
Proof.
  change (LRE_inf strata) with (Rmax (if Rlt_dec 0 (1 / 2) then Rabs (r strata first) else 0)
    (Rmax (if Rlt_dec 0 (1 / 2) then Rabs (r strata second) else 0) 0)).
  rewrite two_r_first, two_r_second, Rabs_Ropp, Rabs_pos_eq by lra. destruct Rlt_dec; [| lra].
  rewrite (Rmax_left eps 0) by lra. apply Rmax_left. lra.
Qed.

Lemma two_LRE_2 : LRE_2 strata = eps.
Proof.
  unfold LRE_2. rewrite two_sum, two_r_first, two_r_second. simpl.
  replace (_ + _) with (eps * eps) by field. apply sqrt_square. lra.
Qed.

Lemma two_inside : forall s, In s strata -> inside s = zero.
Proof. intros s [<- | [<- | []]]; unfold inside; simpl; vector_identity; ring. Qed.

Lemma two_eta : eta strata = 0.
Proof.
  unfold eta. rewrite (sum_ext _ (fun _ => 0 * 0)), sum_scale; [unfold Rdiv; ring |].
  intros s I. rewrite (two_inside s I), norm_zero. ring.
Qed.

Lemma two_e_len : e_len strata = eps *v v.
Proof.
  unfold e_len. rewrite two_vsum, two_r_first, two_r_second, two_update. simpl.
  vector_identity. field.
Qed.

Let k := norm v / norm u.

Lemma k_nonneg : u <> zero -> 0 <= k.
Proof.
  intros N. apply Rmult_le_pos; [apply norm_nonneg | apply Rlt_le, Rinv_0_lt_compat, norm_positive; exact N].
Qed.

Lemma two_bounds_inf : u <> zero -> bounds_inf strata k.
Proof.
  intros N. pose proof (norm_positive u N). split; [exact (k_nonneg N) |]. intros w. exists <| u, w |>.
  rewrite two_sum, two_update. simpl. rewrite !inner_add, inner_scale.
  replace (<| u, w |> + <| v, w |> - <| u, w |>) with <| v, w |> by ring.
  replace (<| u, w |> + -1 * <| v, w |> - <| u, w |>) with (- <| v, w |>) by ring. rewrite Rabs_Ropp.
  pose proof (cauchy_schwarz v w). replace (k * norm u) with (norm v) by (unfold k; field; lra). lra.
Qed.

Lemma two_bounds_2 : u <> zero -> bounds_2 strata k.
Proof.
  intros N. pose proof (norm_positive u N). split; [exact (k_nonneg N) |]. intros w. rewrite two_sum, two_update. simpl. repeat rewrite ?inner_add, ?inner_scale.
  unfold k. replace (norm v / norm u * norm u * norm w * (norm v / norm u * norm u * norm w))
    with (norm v * norm v * (norm w * norm w)) by (field; lra).
  rewrite !norm_square. pose proof (cauchy_schwarz_squared v w). lra.
Qed.

Lemma two_rho : rho strata k k = eps * k.
Proof. unfold rho. rewrite two_eta, two_LRE_inf, two_LRE_2, Rmin_left by lra. ring. Qed.

(** T7s in any inner-product space. *)
Theorem T7s_equality :
  u <> zero -> u +v (eps *v v) <> zero -> <| v, u +v (eps *v v) |> = 0 ->
  norm (e_len strata) = LRE_inf strata * k * norm (update strata)
  /\ norm (e_len strata) = LRE_2 strata * k * norm (update strata)
  /\ rho strata k k < 1
  /\ cosine (clipped_update strata) (update strata) = sqrt (1 - rho strata k k * rho strata k k).
Proof.
  intros Nu Nw O.
  pose proof (norm_positive u Nu) as Pu. pose proof (norm_positive _ Nw) as Pw.
  rewrite two_e_len, two_LRE_inf, two_LRE_2, two_update, norm_scale, Rabs_pos_eq by lra. rewrite two_rho. unfold k.
  split; [field; lra |]. split; [field; lra |].
  (* Pythagoras: g = (g + eps v) - eps v with orthogonal parts *)
  set (w := u +v (eps *v v)) in *.
  assert (<| u, w |> = norm w * norm w) as Huw.
  { rewrite norm_square. unfold w at 2. rewrite inner_add, inner_scale, O. ring. }
  assert (norm u * norm u = norm w * norm w + eps * eps * (norm v * norm v)) as Pyth.
  { assert (u = w -v (eps *v v)) as E by (unfold w; vector_identity; ring).
    rewrite !norm_square. rewrite E at 1 2.
    repeat rewrite ?inner_add, ?inner_add_r, ?inner_scale, ?inner_scale_r.
    rewrite (inner_comm V w v), O. ring. }
  rewrite two_clipped. fold w.
  assert (1 - eps * (norm v / norm u) * (eps * (norm v / norm u)) = norm w / norm u * (norm w / norm u)) as Sq.
  { apply (Rmult_eq_reg_r (norm u * norm u)); [| nra]. field_simplify; nra. }
  split.
  - assert (0 < norm w / norm u) as Q by (apply Rmult_lt_0_compat; [lra | apply Rinv_0_lt_compat; lra]).
    assert (0 <= norm v / norm u) by (apply Rmult_le_pos; [apply norm_nonneg | apply Rlt_le, Rinv_0_lt_compat; lra]).
    pose proof (Rmult_lt_0_compat _ _ Q Q). nra.
  - rewrite Sq, sqrt_square by (apply Rmult_le_pos; [lra | apply Rlt_le, Rinv_0_lt_compat; lra]).
    unfold cosine. rewrite (inner_comm V w u), Huw. field. lra.
Qed.
End TwoStrata.

(** A vector of R^2. *)
Definition R2 (x y : R) : Rn 2 := (x, (y, tt)).

Lemma inner_R2 (x y x' y' : R) : <| R2 x y, R2 x' y' |> = x * x' + y * y'.
Proof. simpl. ring. Qed.

Lemma norm_one : norm (R2 1 0) = 1.
Proof. unfold norm. rewrite inner_R2. replace (1 * 1 + 0 * 0) with 1 by ring. apply sqrt_1. Qed.

Lemma R2_nonzero : R2 1 0 <> zero.
Proof. intros Z. pose proof norm_one as Q. rewrite Z, norm_zero in Q. lra. Qed.

(** What T7 asks of the strata and of the two constants. *)
Definition T7_hypotheses {V : InnerProductSpace} (strata : list (stratum V)) (k_inf k_2 : R) : Prop :=
  admissible strata /\ update strata <> zero /\ bounds_inf strata k_inf /\ bounds_2 strata k_2.

(** T7 is sharp for every rho, whatever the LRE: two strata of R^2 reach equality. *)
Theorem T7_sharp_in_R2 (target eps : R) :
  0 <= target < 1 -> 0 < eps < 1 ->
  exists (strata : list (stratum (Rn 2))) k, T7_hypotheses strata k k /\ LRE_inf strata = eps /\ eta strata = 0 /\ rho strata k k = target
    /\ cosine (clipped_update strata) (update strata) = sqrt (1 - target * target).
Proof.
  intros Ht He. set (h := sqrt (1 - target * target)).
  assert (h * h = 1 - target * target) as Hh by (apply sqrt_sqrt; nra).
  assert (0 < h) as Ph by (apply sqrt_lt_R0; nra).
  pose (u := R2 1 0). pose (v := R2 (- (target * target) / eps) (target * h / eps)).
  assert (norm u = 1) as U by exact norm_one. assert (u <> zero) as Nu by exact R2_nonzero.
  assert (norm v = target / eps) as W.
  { unfold norm, v. rewrite inner_R2.
    replace (_ + _) with (target / eps * (target / eps)).
    - apply sqrt_square. apply Rmult_le_pos; [lra | apply Rlt_le, Rinv_0_lt_compat; lra].
    - transitivity (target * target * (target * target + h * h) / (eps * eps)); [rewrite Hh |]; field; lra. }
  assert (<| v, u +v (eps *v v) |> = 0) as O.
  { rewrite inner_add_r, inner_scale_r. unfold u, v. rewrite !inner_R2.
    transitivity (target * target * (target * target + h * h - 1) / eps); [field; lra |]. rewrite Hh. field. lra. }
  assert (u +v (eps *v v) <> zero) as Nw.
  { intros Z. assert (<| u +v (eps *v v), u |> = 0) as Q by (rewrite Z; apply inner_zero).
    rewrite inner_add, inner_scale in Q. unfold u, v in Q. rewrite !inner_R2 in Q.
    assert (1 - target * target = 0) as Q2 by (rewrite <- Q; field; lra). nra. }
  exists (two_strata eps u v), (norm v / norm u).
  destruct (T7s_equality eps u v He Nu Nw O) as (_ & _ & _ & C).
  assert (rho (two_strata eps u v) (norm v / norm u) (norm v / norm u) = target) as E
    by (rewrite (two_rho eps u v He), U, W; field; lra).
  rewrite E in C. unfold T7_hypotheses.
  split; [split; [apply two_admissible; lra | split; [rewrite two_update; exact Nu |]] |].
  - split; [apply two_bounds_inf | apply two_bounds_2]; assumption || lra.
  - split; [apply two_LRE_inf; lra |]. split; [apply two_eta; lra |]. split; [exact E | exact C].
Qed.

(** No function of rho that is larger anywhere is a bound, already in R^2. *)
Theorem T7_best_bound (bound : R -> R) :
  (forall (strata : list (stratum (Rn 2))) k_inf k_2, T7_hypotheses strata k_inf k_2 -> rho strata k_inf k_2 < 1 ->
     bound (rho strata k_inf k_2) <= cosine (clipped_update strata) (update strata)) ->
  forall x, 0 <= x < 1 -> bound x <= sqrt (1 - x * x).
Proof.
  intros H x Hx.
  destruct (T7_sharp_in_R2 x (1 / 2) Hx) as (strata & k & Ok & _ & _ & E & C); [lra |].
  rewrite <- C, <- E. apply H; [exact Ok | lra].
Qed.
