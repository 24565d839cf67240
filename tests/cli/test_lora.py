"""Adapters from a shell: what `fit` trains, from every kind of file, and one sentence where something is wrong."""

import json
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
import tokenizers
from interruptions import interrupt_at
from tiny_decoders import make_decoder

from ortpartial import OrtGradientForwardBackwardOptimizer, PaddedBatches, build, constant, op, variable
from ortpartial.adapters import add_dora, add_ia3, add_lora, load_adapter
from ortpartial.cli import fitting, main
from ortpartial.cli.token_rows import TextReader, read_texts
from ortpartial.learning import LearningRateAdamW, NextTokenLearningLoss
from ortpartial.model import read_adapter
from ortpartial.runtime import has_adapter_files

needs_files = pytest.mark.skipif(not has_adapter_files(), reason="onnxruntime has an AdapterFormat from 1.20 on.")
WORDS = ["<pad>", "<s>", "</s>", "a", "b", "c", "d", "user", "says", "tom"]
ROWS = [[3 + (i + j * j) % 4 for j in range(8)] for i in range(5)]
CHAT = "{% if messages and messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" \
       "{% for m in messages %}{{ m['role'] }} says {{ m['content'] }} {{ eos_token }} {% endfor %}" \
       "{% if add_generation_prompt %}tom says {% endif %}"


@pytest.fixture
def base(tmp_path, monkeypatch):
    """A decoder in a folder with a tokenizer, and token ids."""
    monkeypatch.chdir(tmp_path)
    Path("base").mkdir()
    onnx.save(make_decoder(), "base/model.onnx")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(WORDS)}, "<pad>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save("base/tokenizer.json")
    Path("base/genai_config.json").write_text(json.dumps({"model": {"eos_token_id": [2, 0], "context_length": 16}}))
    Path("base/tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    Path("base/chat_template.jinja").write_text(CHAT)
    write_lines("ids.jsonl", [json.dumps(row) for row in ROWS])
    return tmp_path


def write_lines(name, lines):
    Path(name).write_text("\n".join(lines) + "\n")


def train(words):
    return main(["lora", *shlex.split(words)])


def arrays_of(proto):
    names = set(read_adapter(proto).weights)
    return {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer if t.name in names}


@pytest.mark.parametrize("method", ["lora", "dora", "ia3"])
def test_weights_are_those_of_fit(base, capsys, method):
    settings = "--rank 2 --alpha 3 --target attention --target '*up_proj*'"
    assert train(f"base/model.onnx ids.jsonl --method {method} {settings} --seed 5 --rate adamw:0.01 --epochs 2 "
                 "--batch-size 2 --accumulate 2 -o my.safetensors") == 0
    targets = ["attention", "*up_proj*"]
    adapted = add_ia3("base/model.onnx", targets) if method == "ia3" else \
        {"lora": add_lora, "dora": add_dora}[method]("base/model.onnx", targets, 2, 3, random_state=5)
    optimizer = OrtGradientForwardBackwardOptimizer(
        adapted, "adapter", learning_loss=NextTokenLearningLoss(), learning_rate=LearningRateAdamW(0.01), max_iter=2,
        gradient_clipping=1.0, accumulate=2).fit(PaddedBatches(ROWS, batch_size=2, random_state=5))
    expected = arrays_of(optimizer.get_trained_onnx())
    trained = arrays_of(load_adapter("base/model.onnx", "my.safetensors"))
    assert trained.keys() == expected.keys()
    for name, a in expected.items():
        np.testing.assert_allclose(trained[name], a, rtol=1e-5)
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == f"my.safetensors: the adapter, loss {optimizer.train_losses_[-1]:.4g}"
    assert err == f"{len(read_adapter(adapted).targets)} products adapted by " \
                  f"{sum(a.size for a in expected.values()):,} numbers\n"


@needs_files
def test_a_base_and_what_onnxruntime_genai_needs_beside_it(base, capsys):
    Path("deployed").mkdir()
    assert train("base/model.onnx ids.jsonl --epochs 1 --base deployed/model.onnx -o my.onnx_adapter --json") == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["event"], last["adapter"], last["base"]) == ("end", "my.onnx_adapter", "deployed/model.onnx")
    assert sorted(p.name for p in Path("deployed").iterdir()) == sorted(p.name for p in Path("base").iterdir())
    inputs = {i.name for i in onnx.load("deployed/model.onnx").graph.input}
    assert inputs > set(read_adapter(load_adapter("base/model.onnx", "my.onnx_adapter")).weights)
    assert train("deployed/model.onnx ids.jsonl --epochs 1 --rank 3 -o second.onnx_adapter -q") == 0
    assert "lora_A" in str(arrays_of(load_adapter("deployed/model.onnx", "second.onnx_adapter")))


def test_files_of_texts_and_token_ids(base):
    write_lines("texts.jsonl", [
        '{"text": "a b c d"}', "", '{"prompt": "a b ", "completion": "c d"}', '{"input_ids": [3, 4, 5]}',
        '{"input_ids": [3, 4, 5], "labels": [-100, 4, -100]}', '{"messages": [{"role": "user", "content": "a b"}, '
        '{"role": "tom", "content": "c"}]}', '{"text": "a a a a a a a a a a"}', "[]", '{"text": ""}'])
    rows, cut, empty = read_texts(Path("texts.jsonl"), TextReader("base"), 9)
    assert [(row.ids.tolist(), row.labels.tolist()) for row in rows] == [
        ([3, 4, 5, 6, 2], [3, 4, 5, 6, 2]), ([3, 4, 5, 6, 2], [-100, -100, 5, 6, 2]), ([3, 4, 5], [3, 4, 5]),
        ([3, 4, 5], [-100, 4, -100]), ([7, 8, 3, 4, 2, 9, 8, 5, 2], [-100] * 7 + [5, 2]), ([3] * 9, [3] * 9)]
    assert (cut, empty) == (1, 2)
    write_lines("texts.txt", ["a b", "", "c"])
    rows, *_ = read_texts(Path("texts.txt"), TextReader("base"), 9)
    assert [row.ids.tolist() for row in rows] == [[3, 4, 2], [5, 2]]
    for shape in ((2, 3), (6,)):
        np.save("ids.npy", np.arange(3, 9, dtype=np.uint16).reshape(shape))
        rows, *_ = read_texts(Path("ids.npy"), TextReader("base"), 9)
        assert np.concatenate([row.ids for row in rows]).tolist() == [3, 4, 5, 6, 7, 8]


def test_longer_texts_are_cut(base, capsys):
    write_lines("ids.jsonl", [json.dumps([3] * 20), "[3]", "[3, 4]"])
    assert train("base/model.onnx ids.jsonl --epochs 1 -o my.safetensors") == 0
    assert capsys.readouterr().err.startswith("cut to 16 tokens: 1 of 3 rows\n"
                                              "left out, as nothing in them is learned: 1 of 3 rows\n")


def test_an_interrupted_training_goes_on(base, capsys, ctrl_c, monkeypatch):
    words = "base/model.onnx ids.jsonl --epochs 5 --batch-size 2 --dropout 0.2 -o {}.safetensors"
    assert train(words.format("whole")) == 0
    with monkeypatch.context() as m:
        m.setattr(fitting, "_print_line", interrupt_at(2, fitting._print_line))
        assert train(words.format("cut")) == 130
    command = capsys.readouterr().err.splitlines()[-1].split()
    assert command[-1] == "--resume"
    assert main(command[1:]) == 0
    whole, cut = (arrays_of(load_adapter("base/model.onnx", f"{n}.safetensors")) for n in ("whole", "cut"))
    assert all((whole[n] == cut[n]).all() for n in whole)
    assert not list(base.glob("*.checkpoints"))


@pytest.mark.parametrize(("words", "message"), [
    ("base/model.onnx ids.jsonl -o my.onnx", "--output is to end in .onnx_adapter or .safetensors, not '.onnx'."),
    ("base/model.onnx ids.jsonl -o no/my.safetensors", "There is no folder 'no' for the adapter."),
    ("base/model.onnx ids.jsonl --base base/model.onnx -o my.safetensors", "'base/model.onnx' exists; choose another"),
    ("base/model.onnx ids.jsonl --rank 0 -o my.safetensors", "rank is a whole number of at least 1, not 0."),
    ("base/model.onnx ids.jsonl --epochs 0 -o my.safetensors", "--epochs is a whole number of at least 1, not 0."),
    ("base/model.onnx ids.jsonl --target q_prj -o my.safetensors", "The target 'q_prj' matches nothing; did you mean"),
    ("base/model.onnx none.jsonl -o my.safetensors", "There is no file 'none.jsonl'."),
    ("base/model.onnx data.csv -o my.safetensors", "'data.csv' is to end in .jsonl, .txt or .npy, for texts or token"),
    ("base/model.onnx big.jsonl -o my.safetensors", "24"),
    ("base/model.onnx refused.jsonl -o my.safetensors", "line 1 of refused.jsonl has messages that the template refu"),
    ("base/model.onnx short.jsonl -o my.safetensors", "'short.jsonl' has no row with a token to learn: one th"),
    ("base/model.onnx keys.jsonl -o my.safetensors", "line 2 of keys.jsonl has none of text, prompt with completion, "
                                                     "messages and input_ids; it has 'txt'."),
    ("base/model.onnx broken.jsonl -o my.safetensors", "line 1 of broken.jsonl is no JSON: "),
    ("base/model.onnx floats.jsonl -o my.safetensors", "line 1 of floats.jsonl is no list of token ids, which are wh"),
    ("base/model.onnx labels.jsonl -o my.safetensors", "line 1 of labels.jsonl has 2 input_ids and 1 labels."),
    ("base/model.onnx floats.npy -o my.safetensors", "'floats.npy' holds float64[3], and token ids are whole numbers"),
    ("base/model.onnx latin.txt -o my.safetensors", "'latin.txt' is no text in UTF-8: "),
    ("alone/model.onnx texts.txt -o my.safetensors", "There is no 'alone/tokenizer.json' for texts; give token id"),
    ("alone/model.onnx refused.jsonl -o my.safetensors", "There is no chat_template.jinja in 'alone' for messages"),
    ("base/model.onnx chat.jsonl -o my.safetensors", "line 1 of chat.jsonl has messages that are no objects with a"),
    ("base/model.onnx empty.jsonl -o my.safetensors", "'empty.jsonl' has no row with a token to learn: one th"),
    ("base/none.onnx ids.jsonl -o my.safetensors", "base/none.onnx"),
    ("base/model.onnx ids.jsonl -o my.safetensors --base ./my.safetensors", "--output and --base are both 'my.safet"),
    ("none.onnx texts.txt -o my.safetensors", "There is no file 'none.onnx'; give a path to an ONNX model"),
    ("base texts.txt -o my.safetensors", "'base' is a folder; give a path to an ONNX model"),
])
def test_bad_input_is_one_sentence(base, capsys, words, message):
    Path("alone").mkdir()
    onnx.save(make_decoder(), "alone/model.onnx")
    lines = {"big": ["[3, 24]"], "short": ["[3]"], "keys": ["[3, 4]", '{"txt": "a"}'], "broken": ["{"], "empty": [],
             "floats": ["[0.5, 1]"], "labels": ['{"input_ids": [3, 4], "labels": [3]}'], "chat": ['{"messages": [3]}'],
             "refused": ['{"messages": [{"role": "system", "content": "a"}]}']}
    for name, content in lines.items():
        write_lines(f"{name}.jsonl", content)
    write_lines("texts.txt", ["a b"])
    Path("latin.txt").write_bytes("ä".encode("latin-1"))
    Path("data.csv").write_text("a,b\n")
    np.save("floats.npy", np.zeros(3))
    assert train(words) == 2
    err = [line for line in capsys.readouterr().err.splitlines() if "products adapted" not in line]
    assert len(err) == 1
    assert message in err[0], err
    assert not list(base.glob("my.*"))


def test_a_runtime_without_adapter_files(base, capsys, monkeypatch):
    monkeypatch.delattr("onnxruntime.AdapterFormat", raising=False)
    assert train("base/model.onnx ids.jsonl -o my.onnx_adapter") == 2
    assert "has no AdapterFormat, which 1.20 brought; give the adapter a path" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["auto", "step"])
def test_a_model_of_input_ids_alone(base, engine):
    """Without an input for it, batches have no attention mask; words of PEFT are taken."""
    ids, draw = variable("input_ids", "int64", ["N", "L"]), np.random.default_rng(0)
    table, w, head = (constant(draw.normal(size=s).astype(np.float32), hint=n) for s, n in (
        ((24, 8), "embed.weight"), ((8, 8), "fc.weight"), ((8, 24), "head.weight")))
    onnx.save(build([ids], {"logits": op.Tanh(op.Gather(table, ids) @ w) @ head}), "base/ids.onnx")
    words = "base/ids.onnx ids.jsonl --target-modules fc.weight --r 2 --lora-alpha 4 --epochs 2 -q -o my.safetensors"
    assert train(f"{words} --engine {engine}") == 0
    adapter = read_adapter(load_adapter("base/ids.onnx", "my.safetensors"))
    assert (adapter.rank, adapter.alpha, len(adapter.targets)) == (2, 4, 1)
