(** T7s: two strata reach T7's bound exactly, so no better bound holds; and no term of rho can be left out. *)

From Coq Require Import Reals Lra Psatz List.
From Coq Require Vector.
From FSPO Require Import Sums InnerProduct CosineLemma Strata Space.
Import ListNotations.
Open Scope R_scope.

(** The two strata of T7s: p = 1/2, r = +eps and -eps, g_1 - g = v = -(g_2 - g), delta = 0. *)
Definition stratum_of {V : InnerProductSpace} (share rate : R) (x : V) : stratum V :=
  {| p := share; a := rate; g := x; clipped := rate *v x |}.

Definition two_strata {V : InnerProductSpace} (mean eps : R) (u v : V) : list (stratum V) :=
  [ stratum_of (1 / 2) (mean * (1 + eps)) (u +v v); stratum_of (1 / 2) (mean * (1 - eps)) (u -v v) ].

Section TwoStrata.
Context {V : InnerProductSpace}.
Variables (mean eps : R) (u v : V).
Hypothesis mean_positive : 0 < mean.
Hypothesis eps_range : 0 < eps < 1.
Let first := stratum_of (1 / 2) (mean * (1 + eps)) (u +v v).
Let second := stratum_of (1 / 2) (mean * (1 - eps)) (u -v v).
Let strata := two_strata mean eps u v.

Lemma two_sum (f : stratum V -> R) : sum f strata = f first + (f second + 0).
Proof. reflexivity. Qed.

Lemma two_vsum (f : stratum V -> V) : vsum f strata = f first +v (f second +v zero).
Proof. reflexivity. Qed.

Lemma two_fold (f : stratum V -> R -> R) : fold_right f 0 strata = f first (f second 0).
Proof. reflexivity. Qed.

Lemma two_admissible : admissible strata.
Proof.
  assert (0 < mean * (1 + eps)) by (apply Rmult_lt_0_compat; lra).
  assert (0 < mean * (1 - eps)) by (apply Rmult_lt_0_compat; lra).
  unfold strata, two_strata. repeat split; simpl; try lra.
  - intros s [<- | [<- | []]]; simpl; lra.
  - intros s [<- | [<- | []]]; simpl; lra.
  - intros s [<- | [<- | []]]; simpl; lra.
Qed.

Lemma two_a_bar : a_bar strata = mean.
Proof. unfold a_bar. rewrite two_sum. simpl. field. Qed.

Lemma two_update : update strata = u.
Proof. unfold update. rewrite two_vsum. simpl. vector_identity. field. Qed.

Lemma two_clipped : clipped_update strata = mean *v (u +v (eps *v v)).
Proof. unfold clipped_update. rewrite two_vsum. simpl. vector_identity. field. Qed.

Lemma two_r_first : r strata first = eps.
Proof. unfold r. rewrite two_a_bar. simpl. field. lra. Qed.

Lemma two_r_second : r strata second = - eps.
Proof. unfold r. rewrite two_a_bar. simpl. field. lra. Qed.

Lemma two_LRE_inf : LRE_inf strata = eps.
Proof.
  unfold LRE_inf. rewrite two_fold, two_r_first, two_r_second, Rabs_Ropp, Rabs_pos_eq by lra.
  simpl. destruct Rlt_dec; [| lra]. rewrite (Rmax_left eps 0) by lra. apply Rmax_left. lra.
Qed.

Lemma two_LRE_2 : LRE_2 strata = eps.
Proof.
  unfold LRE_2. rewrite two_sum, two_r_first, two_r_second. simpl.
  replace (_ + _) with (eps * eps) by field. apply sqrt_square. lra.
Qed.

Lemma two_delta : forall s, In s strata -> delta s = zero.
Proof.
  assert (0 < mean * (1 + eps)) by (apply Rmult_lt_0_compat; lra).
  assert (0 < mean * (1 - eps)) by (apply Rmult_lt_0_compat; lra).
  intros s [<- | [<- | []]]; unfold delta; simpl; destruct Req_EM_T; try lra; vector_identity; field; lra.
Qed.

Lemma two_eta : eta strata = 0.
Proof.
  unfold eta. rewrite (sum_ext _ (fun _ => 0 * 0)), sum_scale; [unfold Rdiv; ring |].
  intros s I. rewrite (two_delta s I), norm_zero. ring.
Qed.

Lemma two_e_len : e_len strata = eps *v v.
Proof.
  unfold e_len. rewrite two_vsum, two_r_first, two_r_second, two_update. simpl.
  vector_identity. field.
Qed.

Lemma norm_centred_first : norm (u +v v -v u) = norm v.
Proof. f_equal. vector_identity. ring. Qed.

Lemma norm_centred_second : norm (u -v v -v u) = norm v.
Proof.
  transitivity (norm (-1 *v v)); [f_equal; vector_identity; ring |].
  rewrite norm_scale, Rabs_left by lra. ring.
Qed.

Let k := norm v / norm u.

Lemma two_bounds_inf : u <> zero -> bounds_inf strata k.
Proof.
  intros N. assert (update strata <> zero) as Nu by (rewrite two_update; exact N).
  pose proof (T7_one_centre strata two_admissible Nu u) as B.
  rewrite two_sum, two_update in B. simpl in B. rewrite norm_centred_first, norm_centred_second in B.
  unfold k. replace (norm v) with (1 / 2 * norm v + (1 / 2 * norm v + 0)) by field. exact B.
Qed.

Lemma two_bounds_2 : u <> zero -> bounds_2 strata k.
Proof.
  intros N. pose proof (norm_positive u N) as P. pose proof (norm_nonneg v).
  split; [apply Rmult_le_pos; [assumption | apply Rlt_le, Rinv_0_lt_compat; exact P] |].
  intros w. rewrite two_sum, two_update. simpl. repeat rewrite ?inner_add, ?inner_scale.
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
  rewrite two_clipped, cosine_scale by exact mean_positive. fold w.
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
Definition R2 (x y : R) : Rn 2 := Vector.cons R x 1 (Vector.cons R y 0 (Vector.nil R)).

Lemma inner_R2 (x y x' y' : R) : <| R2 x y, R2 x' y' |> = x * x' + y * y'.
Proof. unfold R2, inner. simpl. unfold dot. simpl. ring. Qed.

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
  assert (norm u = 1) as U.
  { unfold norm, u. rewrite inner_R2. replace (_ + _) with 1 by ring. apply sqrt_1. }
  assert (norm v = target / eps) as W.
  { unfold norm, v. rewrite inner_R2.
    replace (_ + _) with (target / eps * (target / eps)).
    - apply sqrt_square. apply Rmult_le_pos; [lra | apply Rlt_le, Rinv_0_lt_compat; lra].
    - transitivity (target * target * (target * target + h * h) / (eps * eps)); [rewrite Hh |]; field; lra. }
  assert (u <> zero) as Nu by (intros Z; rewrite Z, norm_zero in U; lra).
  assert (<| v, u +v (eps *v v) |> = 0) as O.
  { rewrite inner_add_r, inner_scale_r. unfold u, v. rewrite !inner_R2.
    transitivity (target * target * (target * target + h * h - 1) / eps); [field; lra |]. rewrite Hh. field. lra. }
  assert (u +v (eps *v v) <> zero) as Nw.
  { intros Z. assert (<| u +v (eps *v v), u |> = 0) as Q by (rewrite Z; apply inner_zero).
    rewrite inner_add, inner_scale in Q. unfold u, v in Q. rewrite !inner_R2 in Q.
    assert (1 - target * target = 0) as Q2 by (rewrite <- Q; field; lra). nra. }
  exists (two_strata 1 eps u v), (norm v / norm u).
  destruct (T7s_equality 1 eps u v Rlt_0_1 He Nu Nw O) as (_ & _ & _ & C).
  assert (rho (two_strata 1 eps u v) (norm v / norm u) (norm v / norm u) = target) as E
    by (rewrite (two_rho 1 eps u v Rlt_0_1 He), U, W; field; lra).
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
