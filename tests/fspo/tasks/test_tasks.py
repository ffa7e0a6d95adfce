"""Tasks: registry, order of prompts, prompt encoding, reasoning-gym and data sets on disk."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fspo.base.errors import UserError
from fspo.tasks import encode_prompt, make_task, prompt_order
from fspo.tasks.base import Example, Rewards

GYM = {"size": 200, "eval_size": 40}


def write_jsonl(path, rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return str(path)


@pytest.fixture
def rows():
    return [{"prompt": f"what is {n} + 1?", "answer": str(n + 1)} for n in range(50)]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("chain-ad", {}, "did you mean 'chain-add'"),
        ("gym:chain_sun", {}, "did you mean 'chain_sum'"),
        ("gym:chain_sum", {"min_term": 2}, "did you mean 'min_terms'"),
        ("gym:chain_sum", {"min_terms": 9, "max_terms": 2}, "max_terms must be >= min_terms"),
        ("gym:chain_sum", {"size": "many"}, "size.*Expected a <class 'int'>"),
        ("dataset", {}, "path"),
        ("dataset", {"path": "x.jsonl", "judge": {"verifer": "math"}}, "did you mean 'verifier'"),
        ("dataset", {"path": "x.jsonl", "eval_path": "y.jsonl", "eval_split": "test"}, "give one of them"),
    ],
)
def test_unknown_names_and_values(name, options, message):
    with pytest.raises(UserError, match=message):
        make_task(name, options)


@given(st.integers(1, 40), st.integers(0, 2**32), st.integers(0, 200), st.integers(0, 90), st.integers(0, 50))
def test_prompt_order_is_resumable_and_covers_each_epoch(size, seed, start, count, cut):
    whole = prompt_order(size, seed, start, count)
    cut = min(cut, count)
    parts = [prompt_order(size, seed, start, cut), prompt_order(size, seed, start + cut, count - cut)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    epoch = start // size
    assert sorted(prompt_order(size, seed, epoch * size, size)) == list(range(size))


def test_prompt_order_depends_on_seed_and_epoch():
    first, second = prompt_order(50, 0, 0, 100).reshape(2, 50)
    assert (first != second).any()
    assert (first != prompt_order(50, 1, 0, 50)).any()
    # Recorded once from raw Philox words: a resumed run must find the same order in years to come.
    np.testing.assert_array_equal(prompt_order(6, 0, 0, 6), [0, 3, 5, 1, 2, 4])
    np.testing.assert_array_equal(prompt_order(None, 9, 5, 3), [5, 6, 7])


TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    """Bytes as tokens, with a post-processor that wraps a text in <s> and </s>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    symbols = {symbol: n for n, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    fast = Tokenizer(models.BPE(vocab=symbols, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(["<s>", "</s>"])
    specials = [(token, fast.token_to_id(token)) for token in ("<s>", "</s>")]
    fast.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=specials)
    return PreTrainedTokenizerFast(tokenizer_object=fast, bos_token="<s>", eos_token="</s>")


CHAT = [{"role": "user", "content": "hi"}]


def test_encode_plain_text_keeps_bos_and_drops_closing_eos(tokenizer):
    ids = encode_prompt(tokenizer, "2+2=")
    assert tokenizer.decode(ids) == "<s>2+2="
    assert all(type(token) is int for token in ids)
    # An end-of-sequence token that the user wrote stays.
    assert tokenizer.decode(encode_prompt(tokenizer, "a</s>")) == "<s>a</s>"


def test_encode_messages_without_template(tokenizer):
    with pytest.raises(UserError, match="chat_template to false"):
        encode_prompt(tokenizer, CHAT)
    with pytest.raises(UserError, match="has no chat template"):
        encode_prompt(tokenizer, "hi", chat_template=True)
    two = [{"role": "system", "content": "short"}, *CHAT]
    assert tokenizer.decode(encode_prompt(tokenizer, two, chat_template=False)) == "<s>short\n\nhi"


def test_encode_with_template(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", TEMPLATE)
    expected = "<user>hi</><assistant>"
    assert tokenizer.decode(encode_prompt(tokenizer, CHAT)) == expected
    assert tokenizer.decode(encode_prompt(tokenizer, "hi")) == expected
    assert tokenizer.decode(encode_prompt(tokenizer, "hi", chat_template=False)) == "<s>hi"
    goes_on = [*CHAT, {"role": "assistant", "content": "Well"}]
    assert tokenizer.decode(encode_prompt(tokenizer, goes_on)) == "<user>hi</><assistant>Well"
    with pytest.raises(UserError, match="no system role"):
        encode_prompt(tokenizer, [{"role": "system", "content": "x"}, *CHAT])


@pytest.mark.parametrize("prompt", [" \n", [], [{"role": "user"}], 3, [{"role": "user", "content": ""}]])
def test_encode_refuses_what_is_no_prompt(tokenizer, prompt):
    with pytest.raises(UserError, match=r"prompt|message"):
        encode_prompt(tokenizer, prompt)


def test_rewards_refuse_what_would_poison_an_update():
    with pytest.raises(UserError, match="reward of response 1 is nan"):
        Rewards(np.array([0.0, np.nan]), ["ok", "ok"])
    with pytest.raises(UserError, match="1 statuses"):
        Rewards(np.array([0.0, 1.0]), ["ok"])
    with pytest.raises(UserError, match="'fine'"):
        Rewards(np.array([0.0]), ["fine"])


# reasoning-gym -------------------------------------------------------------------------------------------


def test_gym_is_a_pure_function_of_seed_and_index():
    one, two = make_task("gym:chain_sum", GYM), make_task("gym:chain_sum", GYM)
    late = one.example("train", 150)
    early = [one.example("train", i) for i in range(20)]
    assert [two.example("train", i) for i in (*range(20), 150)] == [*early, late]
    other = make_task("gym:chain_sum", GYM | {"seed": 1})
    shared = {e.prompt for e in early} & {other.example("train", i).prompt for i in range(20)}
    assert len(shared) <= 1
    assert late.prompt_id == "train-150"
    assert isinstance(late.info["num_terms"], int)
    with pytest.raises(UserError, match="200 train examples"):
        one.example("train", 200)


def test_gym_held_out_questions_never_train():
    # About 200 distinct questions (one digit, two terms): without care most held-out ones would train.
    options = GYM | {"max_digits": 1, "min_terms": 2, "max_terms": 2, "instruction": "none"}
    task = make_task("gym:chain_sum", options)
    train, held_out = ({task.example(split, i).prompt for i in range(task.size(split))} for split in ("train", "eval"))
    assert not train & held_out
    assert min(len(held_out), len(train)) > 30


def test_gym_without_enough_questions_says_so():
    options = {"min_digits": 1, "max_digits": 1, "min_terms": 1, "max_terms": 1, "eval_size": 500, "size": 50}
    task = make_task("gym:chain_sum", options)  # ten questions in all, each of them held out
    with pytest.raises(UserError, match="lower eval_size"):
        task.example("train", 0)


def test_gym_scores_with_the_package():
    task = make_task("gym:countdown", GYM)
    examples = [task.example("train", i) for i in range(4)]
    # the package gives the third and the last a part of a mark
    responses = [f"<answer>0</answer> so <answer>\n{examples[0].answer} </answer>", "no tag", "<answer>1 + 1</answer>"]
    rewards = task.score(examples, [*responses, f"so <answer>{examples[3].answer}</answer>"], [True] * 3 + [False])
    assert (rewards.values.tolist(), rewards.status) == ([1, 0, 0, 1], ["ok"] * 4)
    task.close()
    # No oracle answer: judged by the package's checker alone.
    assert make_task("gym:graph_color", GYM).example("train", 0).answer == ""


def test_jsonl_rows_splits_and_score(tmp_path, rows):
    path = write_jsonl(tmp_path / "sums.jsonl", [*rows[:3], "", *rows[3:]])
    task = make_task("dataset", {"path": path, "eval_share": 0.2, "seed": 4})
    assert (task.size("train"), task.size("eval")) == (40, 10)
    train = [task.example("train", i) for i in range(40)]
    held_out = [task.example("eval", i) for i in range(10)]
    assert {e.prompt for e in train + held_out} == {row["prompt"] for row in rows}
    assert len({e.prompt_id for e in train + held_out}) == 50
    for seed in (4, 5):
        again = make_task("dataset", {"path": path, "eval_share": 0.2, "seed": seed})
        assert ([again.example("eval", i) for i in range(10)] == held_out) == (seed == 4)
    rewards = task.score(train[:2], [train[0].answer, "none"], [True, True])
    assert rewards.values.tolist() == [1, 0]


def test_eval_file_and_its_leak(tmp_path, rows, caplog):
    train = write_jsonl(tmp_path / "train.jsonl", rows[:30])
    held_out = write_jsonl(tmp_path / "eval.jsonl", rows[25:40])
    task = make_task("dataset", {"path": train, "eval_path": held_out})
    assert (task.size("train"), task.size("eval")) == (25, 15)
    assert "5 training rows repeat a held-out prompt" in caplog.text


def test_parquet_with_messages_numbers_and_other_columns(tmp_path):
    chats = [[{"role": "user", "content": f"{n}+1"}] for n in range(6)]
    path = tmp_path / "chat.parquet"
    pq.write_table(pa.table({"messages": chats, "result": pa.array(range(1, 7))}), path)
    options = {"path": str(path), "prompt_column": "messages", "answer_column": "result", "eval_share": 0.0}
    task = make_task("dataset", options | {"suffix": " = ?"})
    assert task.size("eval") == 0
    assert task.example("train", 2) == Example("row-3", [{"role": "user", "content": "2+1 = ?"}], "3")


def test_hugging_face_folder_and_name_of_a_split(tmp_path, rows):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(rows)
    datasets.DatasetDict(train=data.select(range(40)), test=data.select(range(40, 50))).save_to_disk(tmp_path / "hf")
    task = make_task("dataset", {"path": str(tmp_path / "hf"), "eval_split": "test"})
    assert (task.size("train"), task.size("eval")) == (40, 10)
    assert task.example("eval", 0).answer == "41"
    for wrong in ({"path": str(tmp_path / "hf"), "eval_split": "tst"}, {"path": str(tmp_path / "nothing-here")}):
        with pytest.raises(UserError, match="check path, subset and split"):
            make_task("dataset", wrong)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{broken", r"line 3: no valid JSON .*: correct the row"),
        ([1], "line 3: the row is list"),
        ({"prompt": "", "answer": "1"}, r"line 3: the prompt is empty \(columns prompt, answer\): correct or remove"),
        ({"prompt": None, "answer": "1"}, "line 3: column 'prompt' is missing or null"),
        ({"prompt": "p", "answer": " "}, "line 3: the answer is empty"),
        ({"prompt": "p", "answer": True}, "line 3: the answer is bool"),
        ({"question": "p", "answer": "1"}, "line 3: column 'prompt' is missing or null: set prompt_column to one of q"),
    ],
)
def test_bad_rows_name_file_line_and_cure(tmp_path, rows, row, message):
    path = write_jsonl(tmp_path / "bad.jsonl", [*rows[:2], row, *rows[2:], row])
    with pytest.raises(UserError, match=rf"bad.jsonl, {message}") as caught:
        make_task("dataset", {"path": path})
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_used(tmp_path):
    for name, content, message in (
        ("empty.jsonl", b"\n", "no rows"),
        ("latin.jsonl", '{"prompt": "café", "answer": "1"}'.encode("latin-1"), "not UTF-8"),
        ("no.parquet", b"PAR0 nonsense", "no readable parquet"),
        ("table.csv", b"prompt,answer\n", "convert it to"),
        ("one.jsonl", b'{"prompt": "p", "answer": "1"}', "no row is left to train on"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=message):
            make_task("dataset", {"path": str(tmp_path / name)})
