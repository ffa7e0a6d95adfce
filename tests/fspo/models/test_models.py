"""Loading of models and tokenizers."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, Qwen3ForCausalLM, T5Config, T5ForConditionalGeneration

from fspo.base.errors import UserError
from fspo.models import load
from fspo.models.shapes import small_qwen3

IDS = torch.arange(3, 23)[None]


def tiny_qwen(vocabulary: int = 24) -> Qwen3ForCausalLM:
    changes = {"vocab_size": vocabulary, "num_hidden_layers": 1, "attention_dropout": 0.3}
    return Qwen3ForCausalLM(small_qwen3(16, 2, **changes))


def test_embedded_model_shape():
    # By hand: q, k, v, o, three MLP matrices, two norms of 128 and of 32 per layer; two 24 x 128 tables; final norm.
    layer = 128 * 128 + 2 * 128 * 64 + 128 * 128 + 3 * 128 * 384 + 2 * 128 + 2 * 32
    assert sum(p.numel() for p in load.build_embedded_model().parameters()) == 2 * layer + 2 * 24 * 128 + 128


def test_saved_folder_round_trip(tmp_path):
    model = load.build_embedded_model(3)
    model.save_pretrained(tmp_path)
    load.load_tokenizer("embedded").save_pretrained(tmp_path)
    again = load.load_model(tmp_path, "bfloat16", attn_implementation="eager")
    assert again.dtype == torch.bfloat16
    assert again.config._attn_implementation == "eager"
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value.to(again.dtype))
    tokenizer = load.load_tokenizer(tmp_path)
    load.check_vocabulary(again, tokenizer)
    assert load.eos_token_ids(again, tokenizer) == [1]
    assert tokenizer.padding_side == "left"


@pytest.mark.parametrize("kind", ["gpt2", "qwen"])
def test_dropout_is_off_in_train_mode(tmp_path, kind):
    model = (
        GPT2LMHeadModel(GPT2Config(vocab_size=24, n_positions=64, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.5))
        if kind == "gpt2"
        else tiny_qwen()
    )
    model.train()
    with torch.no_grad():
        assert not torch.equal(model(IDS).logits, model(IDS).logits)  # the control: there is dropout
    model.save_pretrained(tmp_path)
    loaded = load.load_model(tmp_path).train()
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, loaded(IDS).logits)
    load.switch_dropout_off(model)
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, model(IDS).logits)


def test_tokenizer_without_pad_token_with_template_and_without_end_token(tmp_path):
    tokenizer = load.load_tokenizer("embedded")
    tokenizer.pad_token = None
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}="
    tokenizer.save_pretrained(tmp_path)
    again = load.load_tokenizer(tmp_path)
    assert again.pad_token_id == again.eos_token_id == 1
    assert again.apply_chat_template([{"role": "user", "content": "12"}], tokenize=False) == "12="
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="end token"):
        load.load_tokenizer(tmp_path)


def test_tokenizer_larger_than_the_model():
    with pytest.raises(UserError, match="belongs to the model"):
        load.check_vocabulary(tiny_qwen(20), load.load_tokenizer("embedded"))


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(UserError, match="there is no folder"):
        load.load_tokenizer(tmp_path / "nowhere")
    load.build_embedded_model().save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    del tensors["lm_head.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lm_head\.weight"):
        load.load_model(tmp_path)
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match="cannot load"):
        load.load_model(tmp_path)
    (tmp_path / "config.json").write_text("{ not json")
    with pytest.raises(UserError, match="cannot load"):
        load.load_model(tmp_path)


def test_wrong_kind_of_model(tmp_path):
    config = T5Config(vocab_size=24, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(UserError):
        load.load_model(tmp_path)


def test_impossible_options():
    with pytest.raises(UserError, match="did you mean 'float32'"):
        load.load_model("embedded", "float23")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="rank"):
        load.LoraOptions(rank=0)
    with pytest.raises(UserError, match="lora"):
        load.load_model("embedded", lora=load.LoraOptions(target_modules=["nothing"]))
