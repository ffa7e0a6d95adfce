(** R^n with the dot product is an inner-product space, so T7 holds there. *)

From Coq Require Import Reals Lra Psatz List.
From FSPO Require Import Sums InnerProduct CosineLemma Strata.
Open Scope R_scope.

(** R^0. *)
Definition point : InnerProductSpace.
Proof.
  refine {| vector := unit; zero := tt; add _ _ := tt; scale _ _ := tt; inner _ _ := 0 |};
    abstract (intros; repeat match goal with x : unit |- _ => destruct x end; solve [reflexivity | ring | lra]).
Defined.

(** One more coordinate. *)
Definition beside (V : InnerProductSpace) : InnerProductSpace.
Proof.
  refine {| vector := R * V; zero := (0, zero);
    add x y := (fst x + fst y, snd x +v snd y); scale c x := (c * fst x, c *v snd x);
    inner x y := fst x * fst y + <| snd x, snd y |> |};
    abstract (intros; repeat match goal with x : (R * vector V)%type |- _ => destruct x end; simpl in *;
      first
        [ f_equal; [ring |]; apply inner_extensional; intros; repeat rewrite ?inner_add, ?inner_scale, ?inner_zero; ring
        | rewrite (inner_comm V); ring
        | rewrite inner_add; ring
        | rewrite inner_scale; ring
        | match goal with |- 0 <= ?a * ?a + _ => pose proof (Rle_0_sqr a) as Q; unfold Rsqr in Q end;
          match goal with |- context [<| ?x, ?x |>] => pose proof (inner_nonneg V x) end; lra
        | match goal with H : ?a * ?a + <| ?x, ?x |> = 0 |- _ =>
            pose proof (Rle_0_sqr a) as Q; unfold Rsqr in Q; pose proof (inner_nonneg V x);
            f_equal; [apply Rsqr_0_uniq; unfold Rsqr; lra | apply inner_definite; lra] end ]).
Defined.

(** R^n: n real numbers, and the sum of their products. *)
Fixpoint Rn (n : nat) : InnerProductSpace :=
  match n with
  | O => point
  | S m => beside (Rn m)
  end.
