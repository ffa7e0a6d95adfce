"""`observe` on TRL's AsyncGRPOTrainer: a real run of its packed batches, with an attention that runs on a CPU."""

import queue

import numpy as np
import pytest
import torch
from datasets import Dataset
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from analysis.__main__ import main as analysis
from fspo.gradlog import read_log
from fspo.integrations.trl import observe
from fspo.models.load import build_embedded_model, load_tokenizer
from fspo.policy.logprobs import make_batch, token_log_probs

ROWS, UPDATES, EOS = 8, 3, 1
PROMPT = [5, 6, 13]


class Attention:
    """Stands for the FlashAttention kernel that TRL loads, which needs a GPU: one call of torch for each segment."""

    def flash_attn_varlen_func(self, q, k, v, starts_q, starts_k, *_, softmax_scale, causal, **__):
        parts = []
        for i in range(len(starts_q) - 1):
            queries, keys = slice(*starts_q[i : i + 2].tolist()), slice(*starts_k[i : i + 2].tolist())
            q_i, k_i, v_i = (x.transpose(0, 1) for x in (q[queries], k[keys], v[keys]))
            seen = torch.ones(q_i.shape[1], k_i.shape[1], dtype=torch.bool).tril(k_i.shape[1] - q_i.shape[1])
            parts.append(
                torch.nn.functional.scaled_dot_product_attention(
                    q_i, k_i, v_i, attn_mask=seen, scale=softmax_scale, enable_gqa=True
                ).transpose(0, 1)
            )
        return (torch.cat(parts),)


class Worker:
    """Stands for the rollout worker and the weight transfer, which need a vLLM server: its answers are known."""

    def __init__(self):
        self.rollout_buffer, self.metrics_queue = queue.Queue(), queue.Queue()
        draw = np.random.default_rng(0)
        self.answers = []
        for i in range((UPDATES + 2) * ROWS):  # the loader reads ahead
            answer = [*draw.integers(3, 24, 1 + i % 7).tolist(), EOS if i % 3 else 4]
            self.answers.append(answer)
            n = len(answer)
            self.rollout_buffer.put(
                RolloutSample(
                    prompt=[], completion=[], input_ids=np.array(PROMPT + answer),
                    completion_mask=np.array([0] * len(PROMPT) + [1] * n),
                    old_log_probs=np.array([0.0] * len(PROMPT) + [-3.0] * n, dtype=np.float32),
                    advantage=float(i % 4 - 1.5), model_version=1 + (i >= 2 * ROWS), group_id=i // 4,
                    metrics={"reward": i / 10},
                )
            )  # fmt: skip

    def send_weights(self, iterator):
        for _ in iterator:
            pass

    def _nothing(self, *_):
        pass

    start = stop = update_model_version = check_health = init_weight_transfer = pause = resume = destroy = _nothing


def train(folder, kind):
    build_embedded_model(0).save_pretrained(folder / "model")
    args = AsyncGRPOConfig(
        str(folder), use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, save_strategy="no", token_budget=0,
        per_device_train_batch_size=ROWS, max_steps=UPDATES, learning_rate=1e-3, epsilon=0.1, epsilon_high=0.3,
        gradient_checkpointing=False, dataloader_pin_memory=False, dtype="float32",
    )  # fmt: skip
    worker = Worker()
    trainer = kind(
        str(folder / "model"),
        args=args,
        train_dataset=Dataset.from_list([{"prompt": "1+"}] * 8),
        processing_class=load_tokenizer("embedded"),
        rollout_worker=worker,
        weight_transfer=worker,
    )
    trainer.train()
    return trainer, worker


def test_the_weights_stay_and_the_log_has_the_ratio_to_the_sampler(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "_flash_attn", Attention)
    monkeypatch.setattr(async_grpo_trainer, "VLLMClient", lambda *_: None)  # no server here
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)  # asks CUDA
    plain, _ = train(tmp_path / "plain", AsyncGRPOTrainer)
    watched, worker = train(tmp_path / "watched", observe(AsyncGRPOTrainer, tokens=True))
    start = dict(build_embedded_model(0).named_parameters())
    for (name, theirs), ours in zip(plain.model.named_parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(theirs, ours), name
        assert not torch.equal(theirs, start[name]), name
    log = read_log(tmp_path / "watched")
    number = np.round(log.column("reward") * 10).astype(int)  # the samples may be packed in another order
    step, lengths = log.column("step"), np.array([len(a) for a in worker.answers])
    assert sorted(number) == list(range(UPDATES * ROWS))
    assert list(step) == list(number // ROWS)
    assert list(log.column("length")) == list(lengths[number])
    assert list(log.column("prompt_id")) == list(number // 4)
    assert list(log.column("advantage")) == list(number % 4 - 1.5)
    assert list(log.column("truncated")) == list(number % 3 == 0)
    assert list(log.column("behaviour_version")) == list(np.where(number < 2 * ROWS, 0, 1))
    assert not log.column("log_ratio").any()
    tokens = log.table.column("token_behaviour_log_ratio").to_pylist()
    assert [len(row) for row in tokens] == list(log.column("length"))
    assert [sum(row) for row in tokens] == pytest.approx(log.column("behaviour_log_ratio"), abs=1e-4)
    assert "engine_log_ratio" not in log  # staleness and engine are not told apart
    first = step == 0
    with torch.no_grad():
        batch = make_batch([PROMPT] * ROWS, worker.answers[:ROWS], 0)
        own = token_log_probs(build_embedded_model(0), batch)[0].double()
    own = torch.where(batch["response_mask"], own, 0.0)
    expected = own.sum(1).numpy() + 3 * lengths[:ROWS]
    np.testing.assert_allclose(log.column("behaviour_log_ratio")[first], expected[number[first]], atol=1e-4)
    assert (log.rule.on, log.rule.range_hi, log.rule.label) == ("total", 0.3, "trl-async")
    ratio = torch.exp(own + 3).numpy()
    A = (np.arange(ROWS) % 4 - 1.5)[:, None]
    cut = ((A > 0) & (ratio > 1.3)) | ((A < 0) & (ratio < 0.9))
    kept = 1 - (cut & batch["response_mask"].numpy()).sum(1) / lengths[:ROWS]
    np.testing.assert_allclose(log.column("multiplier")[first], kept[number[first]], atol=1e-6)
    assert cut.sum() > 0
    assert analysis([str(tmp_path / "watched"), "--on", "behaviour"]) == 0
