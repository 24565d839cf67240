"""Search: pages by the words in which users ask.

The pages are ranked as the search of the site does it: a word counts most in a title, then in a heading, then in the
text, and words are compared by their stems.
"""

import re

import pytest
from paths import ROOT

DOCS = ROOT / "docs"
WRITTEN = ("_build", "examples", "generated")  # by `make docs`

#: What users ask, and the page that answers.
QUESTIONS = {
    "loss is NaN": "how_to/loss_is_nan", "loss diverges": "how_to/loss_is_nan",
    "save the model as ONNX": "how_to/save_as_onnx", "go on with a training": "how_to/save_as_onnx",
    "warm_start or partial_fit": "how_to/save_as_onnx", "checkpoint after a crash": "how_to/resume",
    "resume": "how_to/resume", "multi-GPU": "how_to/devices", "CUDA": "how_to/devices",
    "several processes": "how_to/several_processes", "distributed data parallel": "how_to/several_processes",
    "class imbalance": "how_to/sample_weight", "sample weights": "how_to/sample_weight",
    "export from PyTorch": "how_to/export_for_training", "TensorFlow": "how_to/export_for_training",
    "Keras": "how_to/export_for_training", "data augmentation": "how_to/augment_data",
    "DataLoader": "how_to/large_data", "data larger than memory": "how_to/large_data",
    "contribute an operator": "contributing", "custom loss": "how_to/own_loss",
    "early stopping": "how_to/early_stopping", "validation data": "how_to/early_stopping",
    "learning rate schedule": "how_to/learning_rate", "gradient clipping": "how_to/clip_gradients",
    "out of memory": "how_to/memory", "mixed precision": "how_to/memory", "gradient checkpointing": "how_to/memory",
    "freeze layers": "how_to/choose_weights", "which weights are trained": "how_to/choose_weights",
    "fine-tune a transformer": "tutorials/fine_tune_transformer", "LoRA adapter": "how_to/adapters",
    "language model": "tutorials/language_model_adapter", "quantized model": "how_to/quantized",
    "train in the browser": "tutorials/browser", "Android": "how_to/android", "iOS": "how_to/ios",
    "Kotlin": "how_to/android", "Swift": "how_to/ios",
    "microcontroller": "how_to/without_python", "GridSearchCV": "how_to/scikit_learn",
    "command line": "how_to/command_line", "reproducible results": "how_to/reproducible",
    "plot the losses": "how_to/see_training", "TensorBoard": "how_to/see_training",
    "NoGradientError": "how_to/missing_gradient", "Dropout in training mode": "how_to/train_mode",
    "gradient of the inputs": "how_to/input_gradients", "weights back into torch": "how_to/weights_back",
    "sequences of different lengths": "how_to/lengths", "confusion matrix": "how_to/metrics",
    "custom metric": "how_to/metrics", "F1 score": "how_to/metrics", "accuracy on validation data": "how_to/metrics",
    "plot the graph of a model": "how_to/see_training",
    "find a learning rate": "how_to/learning_rate", "progress bar": "how_to/see_training",
    "class weights": "how_to/sample_weight", "my own training loop": "how_to/custom_steps",
    "model computes its loss": "how_to/loss_in_model", "install": "installation", "speed": "explanations/speed",
    "which engine": "explanations/engines", "scikit-learn pipeline": "how_to/scikit_learn",
    "onnxcustom": "migration/onnxcustom", "ORTModule": "migration/ortmodule",
    "security of files from strangers": "security",
}
STOP = frozenset({"a", "as", "from", "in", "into", "is", "of", "on", "or", "the", "which", "with", "are", "out"})
#: What a word counts in a title, a heading and the text.
WEIGHTS = (8.0, 3.0, 1.0)


def find_stems(text):
    words = re.findall(r"[a-z]+", text.lower().replace("_", " "))
    return [re.sub(r"(?<=\w{3})(?:ings?|ions?|ations?|ers?|ed|es|s|e|al)$", "", w) for w in words if w not in STOP]


def read_pages():
    """By page, the stems of its title, headings and text."""
    pages = {}
    for path in sorted(DOCS.rglob("*.md")):
        name = path.relative_to(DOCS).with_suffix("")
        if WRITTEN[0] in name.parts or WRITTEN[1] in name.parts or WRITTEN[2] in name.parts:
            continue
        text = path.read_text(encoding="utf-8")
        if include := re.search(r"\{include\} (\S+)", text):
            text = (path.parent / include[1]).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
        pages[name.as_posix()] = [find_stems(part) for part in (headings[0], " ".join(headings[1:]), text)]
    return pages


def rank(question, pages):
    """The pages, those that answer a question best first."""
    stems = set(find_stems(question))

    def score(page):
        title, headings, text = pages[page]
        return sum(sum(weight * min(part.count(stem) / (1 + len(part) / 200), 3)
                       for weight, part in zip(WEIGHTS, (title, headings, text), strict=True)) for stem in stems
                   if stem in title or stem in headings or stem in text) * (
                       sum(stem in (*title, *headings, *text) for stem in stems) == len(stems))

    return sorted(pages, key=score, reverse=True)


@pytest.fixture(scope="module")
def pages():
    return read_pages()


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_leads_to_its_page(question, pages):
    """It is among the first five."""
    assert QUESTIONS[question] in rank(question, pages)[:5]


def test_an_unknown_word_leads_nowhere(pages):
    assert "xylophone" not in {stem for parts in pages.values() for part in parts for stem in part}
    assert len(QUESTIONS) >= 40
