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

Lemma two_kappa_c : kappa_c strata = norm v / norm u.
Proof.
  unfold kappa_c. rewrite two_update, two_sum. simpl.
  rewrite norm_centred_first, norm_centred_second. f_equal. field.
Qed.

Lemma two_kappa_c2 : kappa_c2 strata = norm v / norm u.
Proof.
  unfold kappa_c2. rewrite two_update, two_sum. simpl.
  rewrite norm_centred_first, norm_centred_second. f_equal.
  replace (_ + _) with (norm v * norm v) by field. apply sqrt_square, norm_nonneg.
Qed.

Lemma two_kappa : u <> zero -> kappa_c strata <= kappa strata.
Proof.
  intros N. pose proof (norm_positive u N) as P.
  rewrite two_kappa_c. unfold kappa. rewrite two_update, two_sum. simpl.
  apply Rmult_le_compat_r; [apply Rlt_le, Rinv_0_lt_compat; exact P |].
  (* 2 v is the difference of the two updates *)
  pose proof (triangle (u +v v) (-1 *v (u -v v))) as T.
  rewrite norm_scale, (Rabs_left (-1)) in T by lra.
  replace (u +v v +v (-1 *v (u -v v))) with (2 *v v) in T by (vector_identity; ring).
  rewrite norm_scale, Rabs_pos_eq in T by lra. lra.
Qed.

(** For these strata rho is eps ||v|| / ||g||: the two centred bounds agree and are the least. *)
Lemma two_rho : u <> zero -> rho strata = eps * (norm v / norm u).
Proof.
  intros N. unfold rho. rewrite two_eta, two_LRE_inf, two_LRE_2, two_kappa_c2.
  pose proof (two_kappa N) as K. rewrite two_kappa_c in *.
  rewrite (Rmin_right (eps * kappa strata)) by (apply Rmult_le_compat_l; lra).
  rewrite Rmin_left by lra. ring.
Qed.

(** T7s in any inner-product space. *)
Theorem T7s_equality :
  u <> zero -> u +v (eps *v v) <> zero -> <| v, u +v (eps *v v) |> = 0 ->
  e_len strata = eps *v v
  /\ norm (e_len strata) = LRE_inf strata * kappa_c strata * norm (update strata)
  /\ norm (e_len strata) = LRE_2 strata * kappa_c2 strata * norm (update strata)
  /\ rho strata < 1
  /\ cosine (clipped_update strata) (update strata) = sqrt (1 - rho strata * rho strata).
Proof.
  intros Nu Nw O.
  pose proof (norm_positive u Nu) as Pu. pose proof (norm_positive _ Nw) as Pw.
  rewrite two_e_len, two_LRE_inf, two_kappa_c, two_LRE_2, two_kappa_c2, two_update, norm_scale, Rabs_pos_eq by lra.
  split; [reflexivity |]. split; [field; lra |]. split; [field; lra |].
  (* Pythagoras: g = (g + eps v) - eps v with orthogonal parts *)
  set (w := u +v (eps *v v)) in *.
  assert (<| u, w |> = norm w * norm w) as Huw.
  { rewrite norm_square. unfold w at 2. rewrite inner_add, inner_scale, O. ring. }
  assert (norm u * norm u = norm w * norm w + eps * eps * (norm v * norm v)) as Pyth.
  { assert (u = w -v (eps *v v)) as E by (unfold w; vector_identity; ring).
    rewrite !norm_square. rewrite E at 1 2.
    repeat rewrite ?inner_add, ?inner_add_r, ?inner_scale, ?inner_scale_r.
    rewrite (inner_comm V w v), O. ring. }
  rewrite (two_rho Nu). rewrite two_clipped, cosine_scale by exact mean_positive. fold w.
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

(** T7 is sharp for every rho, whatever the LRE: two strata of R^2 reach equality. *)
Theorem T7_sharp_in_R2 (target eps : R) :
  0 <= target < 1 -> 0 < eps < 1 ->
  exists strata : list (stratum (Rn 2)),
    admissible strata /\ update strata <> zero /\ LRE_inf strata = eps /\ eta strata = 0 /\ rho strata = target
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
  exists (two_strata 1 eps u v).
  destruct (T7s_equality 1 eps u v Rlt_0_1 He Nu Nw O) as (_ & _ & _ & _ & C).
  rewrite (two_rho 1 eps u v Rlt_0_1 He Nu), U, W in C.
  replace (eps * (target / eps / 1)) with target in C by (field; lra).
  split; [apply two_admissible; lra |].
  split; [rewrite two_update; exact Nu |].
  split; [apply two_LRE_inf; lra |].
  split; [apply two_eta; lra |].
  split; [| exact C].
  rewrite (two_rho 1 eps u v Rlt_0_1 He Nu), U, W. field. lra.
Qed.

(** No function of rho that is larger anywhere is a bound, already in R^2. *)
Theorem T7_best_bound (bound : R -> R) :
  (forall strata : list (stratum (Rn 2)),
     admissible strata -> update strata <> zero -> rho strata < 1 ->
     bound (rho strata) <= cosine (clipped_update strata) (update strata)) ->
  forall x, 0 <= x < 1 -> bound x <= sqrt (1 - x * x).
Proof.
  intros H x Hx.
  destruct (T7_sharp_in_R2 x (1 / 2) Hx) as (strata & Ok & N & _ & _ & E & C); [lra |].
  rewrite <- C, <- E. apply H; [exact Ok | exact N | lra].
Qed.

(** Controls, refuted: a better constant, by any factor below 1. *)
Theorem T7_better_constant_is_false (factor : R) :
  0 <= factor < 1 ->
  ~ (forall strata : list (stratum (Rn 2)),
       admissible strata -> update strata <> zero -> rho strata < 1 ->
       sqrt (1 - (factor * rho strata) * (factor * rho strata))
       <= cosine (clipped_update strata) (update strata)).
Proof.
  intros Hf H.
  pose proof (T7_best_bound (fun x => sqrt (1 - factor * x * (factor * x))) H (1 / 2)) as B.
  assert (sqrt (1 - factor * (1 / 2) * (factor * (1 / 2))) <= sqrt (1 - 1 / 2 * (1 / 2))) as B2 by (apply B; lra).
  apply sqrt_le_0 in B2; nra.
Qed.

(** ... and LRE without kappa. *)
Theorem T7_without_kappa_is_false :
  ~ (forall strata : list (stratum (Rn 2)),
       admissible strata -> update strata <> zero -> LRE_inf strata + eta strata < 1 ->
       sqrt (1 - (LRE_inf strata + eta strata) * (LRE_inf strata + eta strata))
       <= cosine (clipped_update strata) (update strata)).
Proof.
  intros H.
  destruct (T7_sharp_in_R2 (1 / 2) (1 / 4)) as (strata & Ok & N & L & E & _ & C); [lra | lra |].
  specialize (H strata Ok N). rewrite L, E, C in H.
  assert (1 / 4 + 0 < 1) as Small by lra. specialize (H Small). apply sqrt_le_0 in H; lra.
Qed.

(** One stratum with an error inside it: delta = - x g. *)
Definition one_stratum {V : InnerProductSpace} (x : R) (u : V) : list (stratum V) :=
  [ {| p := 1; a := 1; g := u; clipped := (1 - x) *v u |} ].

Lemma one_facts {V : InnerProductSpace} (x : R) (u : V) : 0 <= x -> u <> zero ->
  let strata := one_stratum x u in
  admissible strata /\ update strata <> zero /\ LRE_inf strata = 0 /\ rho strata = x
  /\ clipped_update strata = (1 - x) *v update strata.
Proof.
  intros Hx Nu strata. pose proof (norm_positive u Nu) as P.
  assert (update strata = u) as Hu by (unfold update; simpl; vector_identity; ring).
  assert (forall s, In s strata -> r strata s = 0) as Hr.
  { intros s [<- | []]. unfold r, a_bar. simpl. field. }
  assert (admissible strata) as Ok.
  { repeat split; simpl; try lra; intros s [<- | []]; simpl; lra. }
  assert (LRE_inf strata = 0) as L.
  { destruct (LRE_inf_attained strata Ok) as (s & I & _ & E). rewrite E, (Hr s I). apply Rabs_R0. }
  assert (LRE_2 strata = 0) as L2.
  { unfold LRE_2. rewrite (sum_ext _ (fun _ => 0 * 0)), sum_scale; [rewrite Rmult_0_l; apply sqrt_0 |].
    intros s I. rewrite (Hr s I). ring. }
  assert (forall s, In s strata -> norm (delta s) = x * norm u) as D.
  { intros s [<- | []]. transitivity (norm (- x *v u)).
    - f_equal. unfold delta. simpl. destruct Req_EM_T; [lra |]. vector_identity. field.
    - rewrite norm_scale, Rabs_Ropp, Rabs_pos_eq by exact Hx. reflexivity. }
  assert (eta strata = x) as E.
  { unfold eta. rewrite Hu. unfold a_bar. simpl. rewrite D by (left; reflexivity). field. lra. }
  split; [exact Ok |].
  split; [rewrite Hu; exact Nu |].
  split; [exact L |].
  split; [unfold rho; rewrite L, L2, E, !Rmult_0_l, !(Rmin_left 0 0) by lra; ring |].
  rewrite Hu. unfold clipped_update. simpl. vector_identity. ring.
Qed.

Lemma R2_nonzero : R2 1 0 <> zero.
Proof.
  intros Z. assert (<| R2 1 0, R2 1 0 |> = 0) as Q by (rewrite Z; apply inner_zero).
  rewrite inner_R2 in Q. lra.
Qed.

(** ... and eta left out. *)
Theorem T7_without_eta_is_false :
  ~ (forall strata : list (stratum (Rn 2)),
       admissible strata -> update strata <> zero ->
       LRE_inf strata * kappa strata < 1 ->
       sqrt (1 - (LRE_inf strata * kappa strata) * (LRE_inf strata * kappa strata))
       <= cosine (clipped_update strata) (update strata)).
Proof.
  intros H. destruct (one_facts 2 (R2 1 0)) as (Ok & N & L & _ & C); [lra | exact R2_nonzero |].
  specialize (H _ Ok N). rewrite L, Rmult_0_l in H. assert (0 < 1) as S by lra. specialize (H S).
  rewrite C in H. replace (1 - 0 * 0) with 1 in H by ring. rewrite sqrt_1 in H.
  pose proof (norm_positive _ N) as P.
  unfold cosine in H. rewrite inner_scale, norm_scale, <- norm_square in H.
  rewrite Rabs_left in H by lra.
  replace ((1 - 2) * _ / _) with (-1) in H by (field; lra). lra.
Qed.

(** Beyond rho = 1 nothing is promised: the clipped update may point the other way. *)
Theorem T7_nothing_beyond_one (x : R) : 1 < x ->
  exists strata : list (stratum (Rn 2)),
    admissible strata /\ update strata <> zero /\ rho strata = x
    /\ cosine (clipped_update strata) (update strata) = -1.
Proof.
  intros Hx. destruct (one_facts x (R2 1 0)) as (Ok & N & _ & E & C); [lra | exact R2_nonzero |].
  exists (one_stratum x (R2 1 0)). repeat (split; [assumption |]).
  rewrite C. pose proof (norm_positive _ N) as P.
  unfold cosine. rewrite inner_scale, norm_scale, <- norm_square, Rabs_left by lra. field. lra.
Qed.

(** At rho = 1 itself the clipped update may vanish. *)
Theorem T7_nothing_at_one :
  exists strata : list (stratum (Rn 2)),
    admissible strata /\ update strata <> zero /\ rho strata = 1 /\ clipped_update strata = zero.
Proof.
  destruct (one_facts 1 (R2 1 0)) as (Ok & N & _ & E & C); [lra | exact R2_nonzero |].
  exists (one_stratum 1 (R2 1 0)). repeat (split; [assumption |]). rewrite C. vector_identity. ring.
Qed.
