(** Section 6, where another law drew the responses: the mean of the ratio to that law (T13), and the
    bias of an update that leaves a part of the ratio out (T13). *)

From Coq Require Import Reals Lra Psatz List.
From FSPO Require Import Sums InnerProduct.
Open Scope R_scope.

Section Ratio.
Context {Y : Type}.
Variables (P Q : Y -> R) (responses : list Y).

(** P(y) if Q can draw y, else 0. *)
Definition kept (y : Y) : R := if Req_EM_T (Q y) 0 then 0 else P y.

(** T13 (a): weighting draws from Q by P/Q gives P's sum over what Q can draw. *)
Theorem T16_reweighted (f : Y -> R) :
  sum (fun y => Q y * (P y / Q y * f y)) responses = sum (fun y => kept y * f y) responses.
Proof.
  apply sum_ext. intros y _. unfold kept.
  destruct Req_EM_T as [Z | N]; [rewrite Z; ring | field; exact N].
Qed.

(** The mean weight is 1 exactly if Q can draw all that P can, and otherwise it is less. *)
Theorem T16_mean_one :
  (forall y, In y responses -> 0 <= P y) -> sum P responses = 1 ->
  sum (fun y => Q y * (P y / Q y)) responses <= 1
  /\ (sum (fun y => Q y * (P y / Q y)) responses = 1 <-> forall y, In y responses -> Q y = 0 -> P y = 0).
Proof.
  intros nonneg total.
  set (lost y := if Req_EM_T (Q y) 0 then P y else 0).
  assert (sum (fun y => Q y * (P y / Q y)) responses + sum lost responses = 1) as E.
  { rewrite <- total, <- sum_plus. apply sum_ext. intros y _. unfold lost.
    destruct Req_EM_T as [Z | N]; [rewrite Z; ring | field; exact N]. }
  assert (forall y, In y responses -> 0 <= lost y) as L.
  { intros y I. unfold lost. pose proof (nonneg y I). destruct Req_EM_T; lra. }
  pose proof (sum_nonneg lost responses L). split; [lra |]. split.
  - intros One y I Z. assert (lost y = 0) as L0 by (apply (sum_zero _ _ L); [lra | exact I]).
    unfold lost in L0. destruct Req_EM_T; [exact L0 | contradiction].
  - intros none. assert (sum lost responses = 0) as Z; [| lra].
    rewrite (sum_ext _ (fun _ => 0 * 0)), sum_scale; [ring |].
    intros y I. unfold lost. destruct Req_EM_T; [rewrite none by assumption; ring | ring].
Qed.

(** Where P itself drew and the sampler reports the probabilities Q, the mean of P/Q is 1 + chi^2(P, Q). *)
Theorem T16_wrong_log_probs :
  (forall y, In y responses -> Q y <> 0) -> sum P responses = 1 -> sum Q responses = 1 ->
  sum (fun y => P y * (P y / Q y)) responses
  = 1 + sum (fun y => (P y - Q y) * (P y - Q y) / Q y) responses.
Proof.
  intros positive total_P total_Q.
  rewrite (sum_ext _ (fun y => (P y - Q y) * (P y - Q y) / Q y + (2 * P y + (-1) * Q y))).
  - rewrite !sum_plus, !sum_scale, total_P, total_Q. ring.
  - intros y I. field. apply positive, I.
Qed.
End Ratio.

(** The responses of one length: their probabilities given the length, the change [c] of their weight, f - e^Y, and the
    rest [u] of the update. *)
Section Bias.
Context {V : InnerProductSpace} {Y : Type}.
Variables (prob c : Y -> R) (u : Y -> V) (responses : list Y).
Hypothesis prob_nonneg : forall y, In y responses -> 0 <= prob y.
Hypothesis total : sum prob responses = 1.

Definition mean_c : R := sum (fun y => prob y * c y) responses.
Definition mean_u : V := vsum (fun y => prob y *v u y) responses.
Definition inside : V := vsum (fun y => (prob y * (c y - mean_c)) *v (u y -v mean_u)) responses.

(** T13 (d): the bias at one length is the product of the means and the part inside the length. *)
Theorem T18_two_parts : vsum (fun y => (prob y * c y) *v u y) responses = mean_c *v mean_u +v inside.
Proof.
  unfold inside. vector_identity.
  rewrite (sum_ext (fun y => <| (prob y * (c y - mean_c)) *v (u y -v mean_u), z |>)
    (fun y => prob y * c y * <| u y, z |> + (- mean_c) * (prob y * <| u y, z |>)
              + ((- <| mean_u, z |>) * (prob y * c y) + mean_c * <| mean_u, z |> * prob y))).
  2: { intros y _. repeat rewrite ?inner_add, ?inner_scale. ring. }
  rewrite !sum_plus, !sum_scale, total. fold mean_c.
  assert (<| mean_u, z |> = sum (fun y => prob y * <| u y, z |>) responses) as E.
  { unfold mean_u. rewrite inner_vsum. apply sum_ext. intros y _. apply inner_scale. }
  rewrite <- E.
  rewrite (sum_ext (fun y => <| (prob y * c y) *v u y, z |>) (fun y => prob y * c y * <| u y, z |>)).
  2: { intros y _. apply inner_scale. }
  ring.
Qed.

(** The part inside is at most the product of the two standard deviations. *)
Theorem T18_bound :
  norm inside <= sqrt (sum (fun y => prob y * ((c y - mean_c) * (c y - mean_c))) responses)
                 * sqrt (sum (fun y => prob y * (norm (u y -v mean_u) * norm (u y -v mean_u))) responses).
Proof. apply norm_weighted. exact prob_nonneg. Qed.
End Bias.
