(** Sections 4 and 6: the weight at the band's edge (T11), the surrogate's sign (T9), pairs of prompts (T11) and
    weight acceptance (T9). *)

From Coq Require Import Reals Lra Psatz List.
From FSPO Require Import Sums InnerProduct CosineLemma Strata.
Open Scope R_scope.

(** T11: with drift - sigma^2 L / 2 the log weight at the upper edge is at most (c / sigma)^2 / 2. *)
Theorem T10_upper_edge (sigma c L : R) :
  0 < sigma -> 0 <= L ->
  exp (- L * (sigma * sigma) / 2 + c * sqrt L) <= exp (c / sigma * (c / sigma) / 2).
Proof.
  intros Hs HL.
  set (t := sqrt L). assert (t * t = L) as Ht by (apply sqrt_sqrt; exact HL).
  assert (c / sigma * (c / sigma) / 2 - (- L * (sigma * sigma) / 2 + c * t)
          = (c / sigma - sigma * t) * (c / sigma - sigma * t) / 2) as E.
  { rewrite <- Ht. field. lra. }
  pose proof (Rle_0_sqr (c / sigma - sigma * t)) as Q. unfold Rsqr in Q.
  assert (- L * (sigma * sigma) / 2 + c * t <= c / sigma * (c / sigma) / 2) as Le by lra.
  destruct Le as [Lt | Eq]; [left; apply exp_increasing; exact Lt | right; rewrite Eq; reflexivity].
Qed.

(** It is reached at L = (u / sigma)^2 with u = c / sigma. *)
Theorem T10_reached (sigma c : R) :
  0 < sigma -> 0 <= c ->
  let L := c / sigma / sigma * (c / sigma / sigma) in
  exp (- L * (sigma * sigma) / 2 + c * sqrt L) = exp (c / sigma * (c / sigma) / 2).
Proof.
  intros Hs Hc L. f_equal. unfold L. rewrite sqrt_square; [field; lra |].
  pose proof (Rinv_0_lt_compat _ Hs). unfold Rdiv. repeat apply Rmult_le_pos; lra.
Qed.

(** Without drift the edge exceeds every bound. *)
Theorem T10_unbounded (c bound : R) : 0 < c -> exists L, 0 <= L /\ bound < exp (c * sqrt L).
Proof.
  intros Hc. exists (Rabs bound / c * (Rabs bound / c)).
  assert (0 <= Rabs bound / c) as P.
  { apply Rmult_le_pos; [apply Rabs_pos | apply Rlt_le, Rinv_0_lt_compat; exact Hc]. }
  split; [apply Rle_0_sqr |].
  rewrite sqrt_square by exact P. replace (c * (Rabs bound / c)) with (Rabs bound) by (field; lra).
  pose proof (Rle_abs bound). destruct (Req_dec (Rabs bound) 0) as [Z | N].
  - rewrite Z, exp_0 in *. lra.
  - pose proof (exp_ineq1 (Rabs bound) N). lra.
Qed.

(** One response of a stratum: its probability, advantage and log-ratio. *)
Record response : Type := { weight : R; advantage : R; log_ratio : R }.

Section Sign.
Variable responses : list response.
Variables lo hi dual : R.
Hypothesis weights : forall y, In y responses -> 0 <= weight y.
(* the dual edge lies above the lower edge, so that the two cuts of A < 0 exclude each other *)
Hypothesis edges : lo <= dual.

(** Probability of an event, given as a truth value. *)
Definition prob (event : response -> bool) : R :=
  sum (fun y => weight y * (if event y then 1 else 0)) responses.

Definition given (event condition : response -> bool) : R :=
  prob (fun y => andb (event y) (condition y)) / prob condition.

Definition less (x y : R) : bool := if Rlt_dec x y then true else false.
Definition good (y : response) : bool := less 0 (advantage y).
Definition bad (y : response) : bool := less (advantage y) 0.
Definition moves (y : response) : bool := orb (good y) (bad y).
Definition above (edge : R) (y : response) : bool := less edge (log_ratio y).
Definition below (edge : R) (y : response) : bool := less (log_ratio y) edge.

(** Drop: M = 0 where A > 0 and S > hi, or A < 0 and S < lo, or (dual clip) A < 0 and S > dual; else 1. *)
Definition kept (y : response) : bool :=
  negb (orb (andb (good y) (above hi y)) (andb (bad y) (orb (below lo y) (above dual y)))).

(** Update acceptance: the mean of M over responses with A <> 0. *)
Definition a_upd : R := given kept moves.

Lemma prob_nonneg (event : response -> bool) : 0 <= prob event.
Proof. apply sum_nonneg. intros y I. pose proof (weights y I). destruct (event y); lra. Qed.

(** P(condition) P(event | condition) = P(event and condition), also where P(condition) = 0. *)
Lemma product_rule (event condition : response -> bool) :
  prob condition * given event condition = prob (fun y => andb (event y) (condition y)).
Proof.
  unfold given. destruct (Req_dec (prob condition) 0) as [Z | N]; [| field; exact N].
  rewrite Z, Rmult_0_l. symmetry.
  unfold prob. rewrite (sum_ext _ (fun _ => 0 * 0)), sum_scale; [ring |].
  intros y I.
  assert (weight y * (if condition y then 1 else 0) = 0) as E.
  { revert y I. apply sum_zero; [| exact Z]. intros y I. pose proof (weights y I). destruct (condition y); lra. }
  destruct (event y), (condition y); simpl in *; lra.
Qed.

(** T9: the update acceptance by the sign of the advantage. *)
Theorem T11_identity :
  0 < prob moves ->
  a_upd = 1 - (prob good * given (above hi) good
               + prob bad * (given (below lo) bad + given (above dual) bad)) / prob moves.
Proof.
  intros P. unfold a_upd. rewrite Rmult_plus_distr_l, !product_rule.
  apply (Rmult_eq_reg_r (prob moves)); [| lra].
  unfold given at 1. transitivity (prob (fun y => andb (kept y) (moves y))); [field; lra |].
  transitivity (prob moves - (prob (fun y => andb (above hi y) (good y))
                              + (prob (fun y => andb (below lo y) (bad y)) + prob (fun y => andb (above dual y) (bad y)))));
    [| field; lra].
  unfold prob. clear P weights. induction responses as [| y l IH]; simpl; [ring |].
  rewrite IH. clear IH.
  unfold kept, moves, good, bad, above, below, less.
  repeat destruct Rlt_dec; simpl; try ring; exfalso; lra.
Qed.

(** If the two tails are one number, the share of positive advantages drops out. *)
Theorem T11_equal_tails (tail : R) :
  0 < prob moves -> given (above hi) good = tail -> given (below lo) bad + given (above dual) bad = tail ->
  a_upd = 1 - tail.
Proof.
  intros P H1 H2. rewrite T11_identity, H1, H2 by exact P.
  assert (prob moves = prob good + prob bad) as E.
  { unfold prob. rewrite <- sum_plus. apply sum_ext. intros y _.
    unfold moves, good, bad, less. repeat destruct Rlt_dec; simpl; try ring; exfalso; lra. }
  rewrite E in *. field. lra.
Qed.
End Sign.

Section Pairs.
Context {V : InnerProductSpace} {A : Type}.
Variables (prob : A -> R) (d : A -> V) (outcomes : list A).
Hypothesis total : sum prob outcomes = 1.

Definition mean : V := vsum (fun s => prob s *v d s) outcomes.

(** T11: for independent d_i, d_j of one finite law, E <d_i, d_j> = ||E d||^2. *)
Theorem T12_pairs :
  sum (fun i => prob i * sum (fun j => prob j * <| d i, d j |>) outcomes) outcomes = <| mean, mean |>.
Proof.
  unfold mean at 1. rewrite inner_vsum. apply sum_ext. intros i _.
  rewrite inner_scale. f_equal. rewrite inner_comm. unfold mean. rewrite inner_vsum. apply sum_ext. intros j _.
  rewrite inner_scale, (inner_comm V (d i)). reflexivity.
Qed.

(** T11: mean squared error = squared bias + variance. *)
Theorem T12_bias_variance (truth : V) :
  sum (fun i => prob i * <| d i -v truth, d i -v truth |>) outcomes
  = <| mean -v truth, mean -v truth |> + sum (fun i => prob i * <| d i -v mean, d i -v mean |>) outcomes.
Proof.
  assert (forall c : V, sum (fun i => prob i * <| d i -v c, d i -v c |>) outcomes
          = sum (fun i => prob i * <| d i, d i |>) outcomes - 2 * <| mean, c |> + <| c, c |>) as H.
  { intros c. unfold mean. rewrite inner_vsum.
    rewrite (sum_ext _ (fun i => prob i * <| d i, d i |> + ((-2) * <| prob i *v d i, c |> + <| c, c |> * prob i))).
    - rewrite !sum_plus, !sum_scale, total. ring.
    - intros i _. repeat rewrite ?inner_add, ?inner_add_r, ?inner_scale, ?inner_scale_r.
      rewrite (inner_comm V c (d i)). ring. }
  rewrite !H. repeat rewrite ?inner_add, ?inner_add_r, ?inner_scale, ?inner_scale_r.
  rewrite (inner_comm V truth mean). ring.
Qed.
End Pairs.

(** T9: if clipping scales a stratum's update by b, then delta = (b / a - 1) g. *)
Theorem T13_delta {V : InnerProductSpace} (s : stratum V) (b : R) :
  a s <> 0 -> clipped s = b *v g s -> delta s = (b / a s - 1) *v g s.
Proof.
  intros N E. unfold delta. destruct Req_EM_T as [Z | _]; [contradiction |].
  rewrite E. vector_identity. field. exact N.
Qed.
