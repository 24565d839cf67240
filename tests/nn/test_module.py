"""Modules: names, modes, compilation on placeholders, steps that users write, and errors that name the layer."""

import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from ortpartial import TrainingSession, check_training_info, nn, op
from ortpartial.exceptions import ConvergenceError, DataError, GraphError, ModelError, SettingError
from ortpartial.learning_rate import LearningRateAdam, LearningRateSGD

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 3)).astype(np.float32)
Y = X @ np.float32([[1.0], [-2.0], [0.5]]) + 1
LABELS = (X.sum(1) > 0).astype(np.int64)


class MLP(nn.Module):
    def __init__(self, outputs=1):
        self.hidden, self.out = nn.Linear(3, 5), nn.Linear(5, outputs)

    def forward(self, x):
        return self.out(op.Tanh(self.hidden(x)))


class TorchMLP(torch.nn.Module):
    def __init__(self, outputs=1):
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(3, 5), torch.nn.Linear(5, outputs)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))


class Counted(nn.Module):
    """Counts the calls of its Python code."""

    def __init__(self):
        self.linear, self.loss, self.optimizer, self.calls = nn.Linear(3, 1), nn.Loss(), nn.Optimizer(0.1), []

    def forward(self, x):
        return self.linear(x)

    def train_one_batch(self, x, y):
        self.calls.append(type(x).__name__)
        output = self.forward(x)
        loss = self.loss(output, y)
        self.optimizer(loss)
        return output, loss


def like_torch(outputs=1):
    """A compiled module with the weights of a torch one."""
    torch.manual_seed(0)
    theirs = TorchMLP(outputs)
    ours = MLP(outputs).compile(nn.placeholder(["N", 3]))
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def close(ours, theirs, tolerance=1e-5):
    for name, w in theirs.state_dict().items():
        w = w.numpy()
        assert abs(ours[name] - w).max() <= tolerance * max(abs(w).max(), 1e-6), name


@pytest.mark.parametrize("rate", [LearningRateSGD(0.1), LearningRateAdam(1e-2)], ids=lambda r: type(r).__name__)
@pytest.mark.parametrize(("outputs", "target"), [(1, Y), (2, LABELS)], ids=["square_error", "softmax_cross_entropy"])
def test_steps_are_those_of_torch(rate, outputs, target):
    """The default step: the loss follows from the dtype of the target."""
    ours, theirs = like_torch(outputs)
    ours.set_optimizer(rate)
    assert abs(ours(X) - theirs(torch.from_numpy(X)).detach().numpy()).max() < 1e-6
    kind = torch.optim.SGD if isinstance(rate, LearningRateSGD) else torch.optim.Adam
    optimizer = kind(theirs.parameters(), lr=rate.eta0)
    cost = torch.nn.functional.mse_loss if outputs == 1 else torch.nn.functional.cross_entropy
    for _ in range(20):
        output, loss = ours.train_one_batch(X, target)
        y = theirs(torch.from_numpy(X))
        expected = cost(y, torch.from_numpy(target))
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        assert abs(output - y.detach().numpy()).max() < 1e-5
        assert loss == pytest.approx(expected.item(), rel=1e-5)
    close(ours.state_dict(), theirs)


def test_names_are_found_by_attribute():
    class Block(nn.Module):
        def __init__(self):
            self.scale, self.mean = nn.Parameter([2]), nn.Buffer([2])

        def forward(self, x):
            return x * self.scale

    class Net(nn.Module):
        def __init__(self):
            self.blocks, self.heads = [Block(), Block()], {"a": nn.Linear(2, 1)}
            self.shared = self.blocks[0]
            self.size = 3

        def forward(self, x):
            return self.heads["a"](self.shared(x))

    net = Net()
    assert [n for n, _ in net.named_parameters()] == [
        "blocks.0.scale", "blocks.1.scale", "heads.a.weight", "heads.a.bias"]
    assert [n for n, _ in net.named_parameters(buffers=True)][:2] == ["blocks.0.scale", "blocks.0.mean"]
    assert [n for n, _ in net.named_modules()] == ["", "blocks.0", "blocks.1", "heads.a"]


def test_compilation_needs_no_data(recwarn):
    """Weights are made, and code is called with values alone; nothing warns and nothing runs."""
    warnings.simplefilter("always")
    model = Counted().compile(nn.placeholder(["N", 3]), targets=nn.placeholder(["N", 1]), random_state=0)
    assert model.calls == ["Value"]
    assert model.linear.weight.numpy().shape == (1, 3)
    assert len(recwarn) == 0
    for _ in range(3):
        model.train_one_batch(X, Y)
    assert model.calls == ["Value"]


def test_the_step_is_written_at_the_first_batch_where_targets_are_not_known():
    model = Counted().compile([X], random_state=0)
    assert model.calls == []
    losses = [model.train_one_batch(X, Y)[1] for _ in range(50)]
    assert model.calls == ["Value"]
    assert losses[-1] < 0.2 * losses[0]


def test_sizes_follow_from_the_first_input():
    model = nn.Linear(None, 2).compile(X, random_state=0)
    assert model.weight.shape == (2, 3)
    assert model(X).shape == (8, 2)


def test_first_weights_follow_from_the_seed():
    first, same, other = (MLP().compile(X, random_state=s).state_dict() for s in (0, 0, 1))
    assert all((first[n] == same[n]).all() for n in first)
    assert all((first[n] != other[n]).any() for n in first)
    # Two parameters of one shape differ, too.
    model = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    net = type("Net", (nn.Module,), {"forward": lambda self, x: self.b(self.a(x))})()
    net.a, net.b = model
    net.compile(nn.placeholder(["N", 4]), random_state=0)
    assert (net.a.weight.numpy() != net.b.weight.numpy()).any()


def test_the_graph_holds_the_training():
    """Of a module, and of the ONNX standard: another session goes on with it to the same bits."""
    model = MLP().set_optimizer("adam").compile(X, targets=Y, random_state=0)
    model.train_one_batch(X, Y)
    graph = model.graph
    onnx.checker.check_model(graph)
    check_training_info(graph)
    session = TrainingSession(graph)
    again = session.step({"x": X, "target": Y})["loss"]
    assert again == model.train_one_batch(X, Y)[1]
    assert (session.state["hidden.weight"] == model.hidden.weight.numpy()).all()
    session.initialize()
    first = MLP().compile(X, random_state=0)
    assert {*first.state_dict()} <= {*session.state}


def test_inference_model():
    model = MLP().compile(X, random_state=0)
    proto = model.to_onnx()
    onnx.checker.check_model(proto)
    assert not proto.training_info
    assert [node.op_type for node in proto.graph.node] == ["Gemm", "Tanh", "Gemm"]
    assert [t.name for t in proto.graph.initializer] == ["hidden.weight", "hidden.bias", "out.weight", "out.bias"]
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (y,) = session.run(None, {"x": X})
    assert abs(y - model(X)).max() < 1e-6


def test_a_second_compilation_keeps_the_weights():
    model = MLP().compile(X, random_state=0)
    weights = model.state_dict()
    model.compile(nn.placeholder([4, 3]), random_state=1)
    assert all((weights[n] == w).all() for n, w in model.state_dict().items())


class GAN(nn.Module):
    """Two modules and two optimizers, of which the second sees the first one's new weights."""

    def __init__(self):
        self.generator, self.discriminator, self.loss = nn.Linear(2, 3), nn.Linear(3, 1), nn.Loss("log_loss")
        self.of_generator = nn.Optimizer(LearningRateAdam(0.01), self.generator)
        self.of_discriminator = nn.Optimizer(LearningRateSGD(0.1), self.discriminator)

    def forward(self, z):
        return self.generator(z)

    def train_one_batch(self, z, x):
        fake = self.generator(z)
        loss_d = self.loss(self.discriminator(x), 1.0) + self.loss(self.discriminator(fake), 0.0)
        self.of_discriminator(loss_d)
        loss_g = self.loss(self.discriminator(fake), 1.0)
        self.of_generator(loss_g)
        return fake, {"d": loss_d, "g": loss_g}


def test_two_optimizers_are_those_of_torch():
    z = RNG.normal(size=(8, 2)).astype(np.float32)
    torch.manual_seed(0)
    generator, discriminator = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
    model = GAN().compile(nn.placeholder(["N", 2]), targets=nn.placeholder(["N", 3]))
    model.generator.load_state_dict(generator.state_dict())
    model.discriminator.load_state_dict(discriminator.state_dict())
    of_g, of_d = torch.optim.Adam(generator.parameters(), 0.01), torch.optim.SGD(discriminator.parameters(), 0.1)
    bce, ones = torch.nn.functional.binary_cross_entropy_with_logits, torch.ones(8, 1)
    for _ in range(10):
        fake, losses = model.train_one_batch(z, X)
        theirs = generator(torch.from_numpy(z))
        loss_d = bce(discriminator(torch.from_numpy(X)), ones) + bce(discriminator(theirs.detach()), 0 * ones)
        of_d.zero_grad()
        loss_d.backward()
        of_d.step()
        loss_g = bce(discriminator(theirs), ones)
        of_g.zero_grad()
        loss_g.backward()
        of_g.step()
        assert losses["d"] == pytest.approx(loss_d.item(), rel=1e-5)
        assert losses["g"] == pytest.approx(loss_g.item(), rel=1e-5)
        assert abs(fake - theirs.detach().numpy()).max() < 1e-5
    close(model.generator.state_dict(), generator)
    close(model.discriminator.state_dict(), discriminator)


def test_a_part_of_the_weights_is_trained():
    model = MLP().set_optimizer(0.1).compile(X, random_state=0)
    model.optimizer = nn.Optimizer(0.1, model.out)
    before = model.state_dict()
    model.train_one_batch(X, Y)
    after = model.state_dict()
    assert {n for n in after if (after[n] != before[n]).any()} == {"out.weight", "out.bias"}


class Noisy(nn.Module):
    """Random in training mode, and counts its batches."""

    def __init__(self):
        self.seen, self.scale = nn.Buffer([]), nn.Parameter([1], 1.0)

    def forward(self, x):
        y = x * self.scale
        if self.training:
            trace = nn.current_trace()
            trace.write(self.seen, self.seen + 1)
            y = y * trace.draw_mask(y, 0.5)
        return y


def test_modes():
    model = Noisy().set_optimizer(0.0 + 1e-9).compile(nn.placeholder(["N", 3]), random_state=0)
    ones = np.ones((50, 3), np.float32)
    first, second = model(ones), model(ones)
    assert set(np.unique(first)) == {0, 2}
    assert (first != second).any()
    assert model.seen.numpy() == 2
    model.eval()
    assert (model(ones) == 1).all()
    assert (model.predict(ones) == 1).all()
    assert model.seen.numpy() == 2
    model.train()
    outputs = [model.train_one_batch(ones, ones)[0] for _ in range(2)]
    assert (outputs[0] != outputs[1]).any()
    assert model.seen.numpy() == 4


def test_a_part_in_evaluation_stays_so():
    class Two(nn.Module):
        def __init__(self):
            self.a, self.b = Noisy(), Noisy()

        def forward(self, x):
            return self.b(self.a(x))

    model = Two().set_optimizer(1e-9).compile(nn.placeholder(["N", 3]), random_state=0)
    ones = np.ones((50, 3), np.float32)
    model.train_one_batch(ones, ones)
    model.a.eval()
    model.fit(ones, ones, epochs=1, batch_size=50)
    assert (model.a.seen.numpy(), model.b.seen.numpy()) == (1, 2)


def test_fit():
    model = MLP(2).set_optimizer("adam").compile(X, random_state=0)
    model.fit(X, LABELS, epochs=3, batch_size=3, X_val=X, y_val=LABELS)
    assert [(r["epoch"], r["iteration"]) for r in model.history_] == [(1, 3), (2, 6), (3, 9)]
    loss = model._compiled.evaluate([X, LABELS])[1]
    assert model.history_[-1]["validation_loss"] == pytest.approx(loss, rel=1e-5)
    assert model.predict(X, batch_size=3).shape == (8, 2)
    again = MLP(2).set_optimizer("adam").compile(X, random_state=0)
    again.fit(X, LABELS, epochs=9, batch_size=3, callbacks=lambda m: len(m.history_) == 3)
    assert len(again.history_) == 3
    assert all((model.state_dict()[n] == w).all() for n, w in again.state_dict().items())


def test_fit_on_batches():
    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    model = MLP().set_optimizer("adam").compile(X, random_state=0)
    model.fit(torch.utils.data.DataLoader(data, batch_size=4), epochs=2)
    assert model.history_[-1]["iteration"] == 4


@pytest.mark.parametrize(
    ("X", "y", "error", "message"),
    [
        (X, Y.repeat(2, 1), ConvergenceError, "The loss is .* in epoch .*; the weights are those before that batch"),
        (X[:, :2], LABELS, DataError, r"'x' has the shape \(8, 2\), and the module was compiled for float32\[Nx3\]"),
        (X, LABELS[:3], DataError, "X has 8 rows and y 3; they are to be equally many"),
        (X, LABELS + 2, DataError, "target' of the loss has a label that is not in 0 to 1"),
    ],
    ids=["diverges", "shape", "rows", "labels"],
)
def test_data_that_do_not_fit(X, y, error, message):
    model = MLP(2).set_optimizer(1e38 if error is ConvergenceError else 0.1).compile(nn.placeholder(["N", 3]))
    with np.errstate(all="ignore"), pytest.raises(error, match=message):
        model.fit(X, y, epochs=5, batch_size=8)
    assert all(np.isfinite(w).all() for w in model.state_dict().values())


def test_errors_name_the_layer():
    class Net(nn.Module):
        def __init__(self):
            self.encoder = [MLP(4), nn.Linear(5, 1)]

        def forward(self, x):
            for layer in self.encoder:
                x = layer(x)
            return x

    with pytest.raises(GraphError, match=r"^encoder\.1 \(Linear\): "):
        Net().compile(nn.placeholder(["N", 3]))


def test_misuse():
    model = MLP()
    with pytest.raises(ModelError, match="MLP is not compiled; call compile with a placeholder"):
        model(X)
    with pytest.raises(ModelError, match="holds no data, and no graph is written"):
        model(nn.placeholder(["N", 3]))
    with pytest.raises(ModelError, match="has no optimizer; call set_optimizer"):
        model.compile(X).train_one_batch(X, Y)
    with pytest.raises(TypeError, match=r"takes no 'lr'; .*, as in set_optimizer\(LearningRateAdam\(0.01\)\)"):
        model.set_optimizer("adam", lr=0.1)
    with pytest.raises(ModelError, match="An optimizer is called with a loss in train_one_batch"):
        nn.Optimizer(0.1)(nn.placeholder([]))
    with pytest.raises(SettingError, match="A placeholder needs a shape, as its rank"):
        nn.placeholder(None)
    with pytest.raises(DataError, match="MLP takes 1 inputs, x, and got 2 arrays"):
        model(X, X)
    with pytest.raises(NotImplementedError, match=r"Module has no forward\(self, x\)"):
        nn.Module().compile(X)
    with pytest.raises(SettingError, match="epochs is a whole number of at least 1, not 0"):
        model.fit(X, Y, epochs=0)


def test_a_loss_that_is_no_scalar():
    class Net(MLP):
        def train_one_batch(self, x, y):
            self.optimizer(self.forward(x) - y)

    with pytest.raises(GraphError, match="An optimizer takes a scalar loss, not <Value Sub"):
        Net().set_optimizer(0.1).compile(X, targets=Y)


def test_a_parameter_that_is_no_attribute():
    class Net(nn.Module):
        def forward(self, x):
            return x * nn.Parameter([3])

    with pytest.raises(SettingError, match="is no attribute of Net"):
        Net().compile(X)


def test_card():
    model = nn.Linear(3, 1)
    assert "call compile with a placeholder" in model._repr_html_()
    model.set_optimizer("sgd").compile(nn.placeholder(["N", 3]))
    data = np.ones((4, 3), np.float32)
    card = model.fit(data, data[:, :1], epochs=2)._repr_html_()
    for text in ("<th>parameters</th><td>4</td>", "x float32[Nx3]", "LearningRateSGD", "<th>epochs</th><td>2</td>",
                 "<polyline", "<summary>layers</summary>"):
        assert text in card
