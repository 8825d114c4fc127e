"""What people do with volatile, requires_grad and frozen networks, one test a story.

Written as their programs are, most of them for PyTorch up to 0.3. Numbers of bytes, nodes and
kernel launches are exact.
"""

import os
import subprocess
import sys
import textwrap
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import numgrad
import numgrad as torch
import numgrad.nn as nn
import numgrad.nn.functional as F
import numgrad.optim as optim
from numgrad import models
from numgrad.autograd import Variable
from numgrad.distributions import Normal
from numgrad.graph.node import Node
from numgrad.kernels import launch

ROOT = Path(__file__).parents[1]


def bits(x):
    """The memory of a tensor as bytes: equal bits, not only equal numbers."""
    return x.detach().numpy().tobytes()


def nodes_of(x):
    """All nodes that a result's history leads to."""
    found, waiting = set(), [x.grad_fn]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Node) and node not in found:
            found.add(node)
            waiting += [edge[0] for edge in node.edges if edge is not None]
    return found


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = x.view(-1, 320)
        x = F.relu(self.fc1(x))
        return F.log_softmax(self.fc2(x), dim=1)


# ------------------------------------------------------------------------------------------ flags


def test_variable_of_a_tensor_requires_no_grad_and_is_not_volatile():
    x = Variable(torch.randn(2, 1, 28, 28))
    assert not x.requires_grad
    assert not x.volatile


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (Net, (2, 1, 28, 28)),
        (lambda: nn.Linear(4, 3), (2, 4)),
        (lambda: nn.Conv2d(1, 2, 3), (2, 1, 5, 5)),
        (lambda: nn.BatchNorm2d(3), (2, 3, 4, 4)),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), (2, 4)),
    ],
    ids=["net", "linear", "conv", "batch-norm", "sequential"],
)
def test_output_of_a_module_requires_grad_and_is_not_volatile(make, size):
    out = make()(Variable(torch.randn(*size)))
    assert out.requires_grad
    assert not out.volatile
    assert type(out) == Variable  # noqa: E721


def test_sum_requires_grad_if_any_operand_does():
    x = Variable(torch.randn(5, 5))
    y = Variable(torch.randn(5, 5))
    z = Variable(torch.randn(5, 5), requires_grad=True)
    a = x + y
    assert not a.requires_grad
    b = a + z
    assert b.requires_grad
    assert (z + a).requires_grad
    # Only if none of the inputs requires grad is the output free of it.
    for p, q, r in ((x, y, z), (x, z, y), (z, x, y)):
        assert torch.cat([p, q, r]).requires_grad
    assert not torch.cat([x, y, a]).requires_grad


def test_one_volatile_leaf_makes_the_output_volatile():
    ng = numgrad
    model = Net()
    regular_input = Variable(torch.randn(1, 1, 28, 28))
    volatile_input = Variable(torch.randn(1, 1, 28, 28), volatile=True)
    assert model(regular_input).requires_grad
    flags = [p.requires_grad for p in model.parameters()]
    before = [(p, bits(p), p._version) for p in model.parameters()]
    with ng.memory.track() as m:
        out = model(volatile_input)
    assert not out.requires_grad
    assert out.volatile
    assert out.creator is None
    # Nothing in the model was changed for it …
    assert [p.requires_grad for p in model.parameters()] == flags == [True] * 8
    for (p, values, version), q in zip(before, model.parameters(), strict=True):
        assert q is p and bits(q) == values and q._version == version and not q.volatile
    assert model(regular_input).requires_grad
    # … and no intermediate state is kept.
    assert (m.nodes, m.saved_tensors, m.saved_bytes) == (0, 0, 0)
    assert m.live_bytes == out.numel() * 4


def test_detach_shares_memory_and_keeps_volatile():
    x = Variable(torch.randn(3), requires_grad=True)
    v = Variable(torch.randn(3), volatile=True)
    assert (x.detach().requires_grad, x.detach().volatile) == (False, False)
    assert (v.detach().requires_grad, v.detach().volatile) == (False, True)
    for leaf in (x, v):
        again = Variable(leaf.data)
        assert (again.requires_grad, again.volatile) == (False, False)
        leaf.detach()[0] = 7
        assert leaf.data[0] == 7 and again.data[0] == 7
        again.data[1] = 8
        assert leaf.data[1] == 8
    y = x * 2
    assert y.requires_grad and not y.detach().requires_grad and y.detach().grad_fn is None


def test_volatile_and_requires_grad_at_once_is_an_error():
    message = "Variable can't be volatile and require_grad at the same time!"
    with pytest.raises(RuntimeError, match=message):
        Variable(torch.randn(2), requires_grad=True, volatile=True)
    with pytest.raises(RuntimeError, match=message):
        Variable(torch.randn(2), True, True)


def test_backward_of_a_volatile_result_is_an_error():
    loss = Net()(Variable(torch.randn(1, 1, 28, 28), volatile=True)).sum()
    with pytest.raises(RuntimeError, match=r"^element 0 of variables tuple is volatile"):
        loss.backward()


# ---------------------------------------------------------------------------- modules and files

BROKEN = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.hidden = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.heads = [nn.Linear(4, 2) for _ in range(3)]

    def forward(self, x):
        x = self.first(x)
        for layer in self.hidden:
            x = layer(x)
        return sum(head(x) for head in self.heads)
"""


def unregistered():
    names = {"nn": nn}
    exec(BROKEN, names)
    with pytest.warns(UserWarning, match=r"Net\.heads: expected a numgrad\.nn\.ModuleList"):
        return names["Net"]()


def test_a_plain_list_of_modules_is_not_registered():
    net = unregistered()
    expected = [f"{m}.{p}" for m in ("first", "hidden.0", "hidden.1") for p in ("weight", "bias")]
    assert [name for name, _ in net.named_parameters()] == expected
    assert len(list(net.parameters())) == 6
    assert list(net.state_dict()) == expected
    net.double()  # does not reach the list either
    assert net.hidden[1].weight.dtype == numgrad.float64
    assert all(head.weight.dtype == numgrad.float32 for head in net.heads)


def test_a_plain_list_of_modules_stays_on_the_cpu():
    run_on_device(
        """
        import warnings
        import numgrad.nn as nn
        from numgrad.autograd import Variable
        """
        + textwrap.indent(BROKEN, " " * 8)
        + """
        class OnDevice(Net):
            def __init__(self):
                super().__init__()
                self.type(numgrad.cuda.FloatTensor)

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            net = OnDevice()
        assert any("heads" in str(w.message) and "ModuleList" in str(w.message) for w in caught)
        assert all(p.is_cuda for p in net.parameters())
        assert len(list(net.parameters())) == 6
        assert all(v.is_cuda for v in net.state_dict().values())
        assert not any(p.is_cuda for head in net.heads for p in head.parameters())
        x = Variable(numgrad.randn(2, 4).type(numgrad.cuda.FloatTensor))
        h = net.hidden[1](net.hidden[0](net.first(x)))
        assert h.is_cuda
        try:
            net(x)
        except RuntimeError as error:
            text = str(error)
            assert "x on cuda:0" in text and "weight on cpu" in text, text
            assert "heads" in text, text
        else:
            raise AssertionError("operands on two devices")
        """
    )


def run_on_device(body):
    """Run a program in a process in which Numba simulates a GPU."""
    source = "import numgrad\n" + textwrap.dedent(body)
    env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", source], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_state_dict_goes_through_a_file_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = unregistered()
    net.bn = nn.BatchNorm2d(3)
    net.bn(Variable(torch.randn(2, 3, 2, 2)))
    with torch.no_grad():
        net.first.weight[0, :3] = torch.tensor([float("nan"), -0.0, 1e-42])
    kept = {name: bits(value) for name, value in net.state_dict().items()}
    assert not any("heads" in name for name in kept)
    torch.save(net.state_dict(), "net_params.pkl")

    other = unregistered()
    other.bn = nn.BatchNorm2d(3)
    heads = [bits(head.weight) for head in other.heads]
    loaded = torch.load("net_params.pkl")
    assert list(loaded) == list(kept)
    other.load_state_dict(loaded)
    assert {name: bits(value) for name, value in other.state_dict().items()} == kept
    assert [bits(head.weight) for head in other.heads] == heads  # the list is not in the file
    assert other.bn.num_batches_tracked.item() == 1


# ---------------------------------------------------------------------------- freezing

BATCH, CLASSES = 2, 100


def finetune():
    """The program of the PyTorch notes: a fixed ResNet-18 with a new last layer."""
    torch.manual_seed(0)
    model = models.resnet18(pretrained=False)
    for param in model.parameters():
        param.requires_grad = False
    # Parameters of newly constructed modules have requires_grad=True by default.
    model.fc = nn.Linear(512, CLASSES)
    optimizer = optim.SGD(model.fc.parameters(), lr=1e-2, momentum=0.9)
    x = Variable(torch.randn(BATCH, 3, 64, 64))
    target = Variable(torch.LongTensor([3, 99]))
    return model, optimizer, x, target


@pytest.mark.parametrize("how", ["eval", "freeze"])
def test_fine_tuning_the_last_layer_of_a_frozen_resnet18(how):
    model, optimizer, x, target = finetune()
    if how == "eval":
        model.eval()
    else:  # training goes on for the new layer alone
        for name, module in model.named_children():
            if name != "fc":
                module.freeze()
        model.train()
        assert model.fc.training and not model.bn1.training
    before = {name: bits(value) for name, value in model.state_dict().items()}
    optimizer.zero_grad()
    F.cross_entropy(model(x), target).backward()  # every kernel is loaded
    optimizer.zero_grad()

    with numgrad.memory.track() as m:
        output = model(x)
    # The tape is one node, which keeps the input of fc.
    assert (m.nodes, m.saved_tensors) == (1, 1)
    assert m.saved_bytes == BATCH * 512 * 4
    # Logits for the loss: what cross entropy of a constant keeps beside its numbers is its own.
    with numgrad.memory.track() as own:
        alone = F.cross_entropy(output.detach().requires_grad_(), target)
    with numgrad.memory.track() as m:
        output = model(x)
        loss = F.cross_entropy(output, target)
    assert m.saved_bytes == BATCH * 512 * 4 + own.saved_bytes
    assert loss.item() == alone.item()

    # Backward runs what it runs for the loss and for a linear layer, and nothing else.
    layer = nn.Linear(512, CLASSES)
    small = F.cross_entropy(layer(torch.randn(BATCH, 512)), target)
    launches = launch.launches.value
    small.backward()
    expected = launch.launches.value - launches
    launches = launch.launches.value
    loss.backward()
    assert launch.launches.value - launches == expected

    optimizer.step()
    after = {name: bits(value) for name, value in model.state_dict().items()}
    assert list(after) == list(before)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"fc.weight", "fc.bias"}
    assert all(p.grad is None for n, p in model.named_parameters() if not n.startswith("fc."))


def test_frozen_batch_norm_moves_in_training_mode_unless_frozen_by_freeze():
    for freeze, moves in ((False, True), (True, False)):
        model, _, x, _ = finetune()
        if freeze:
            model.freeze()
        model.train()
        before = bits(model.bn1.running_mean)
        model(x)
        assert (bits(model.bn1.running_mean) != before) is moves


def test_frozen_middle_is_neither_taped_nor_visited():
    """A subgraph none of whose leaves requires grad beside one that does."""
    torch.manual_seed(0)
    side = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)])
    for param in side.parameters():
        param.requires_grad = False
    w = Variable(torch.randn(8, 8), requires_grad=True)
    x = Variable(torch.randn(3, 8))
    with numgrad.memory.track() as m:
        middle = side(x)
    assert (m.nodes, m.saved_bytes) == (0, 0)
    assert middle.grad_fn is None and not middle.requires_grad
    with numgrad.memory.track() as m:
        out = (torch.mm(x, w) * side(x)).sum()
    assert m.nodes == 3  # mm, mul, sum
    assert Counter(n.op.name for n in nodes_of(out)) == {"product": 1, "mul": 1, "sum_over": 1}
    # Saved: x for w, and the frozen part's result for the product. Nothing from within it.
    assert m.saved_bytes == 2 * 3 * 8 * 4
    launches = launch.launches.value
    out.backward()
    launches = launch.launches.value - launches
    np.testing.assert_allclose(w.grad.numpy(), x.numpy().T @ middle.numpy(), rtol=1e-5, atol=1e-6)
    # As many kernels as if the middle were a constant.
    out = (torch.mm(x, w) * middle).sum()
    w.grad = None
    before = launch.launches.value
    out.backward()
    assert launch.launches.value - before == launches
    # In the middle of a network the frozen layer passes gradients on, without one of its own.
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1))
    for param in net[1].parameters():
        param.requires_grad = False
    with numgrad.memory.track() as m:
        out = net(x).sum()
    assert m.saved_bytes == 2 * 3 * 8 * 4  # inputs of the first and the last layer only
    out.backward()
    assert net[0].weight.grad is not None and net[1].weight.grad is None


def test_requires_grad_false_on_the_input_alone_frees_nothing():
    model = models.resnet18(num_classes=10).eval()
    data = torch.randn(2, 3, 64, 64)

    def kept(x, context=torch.enable_grad):
        with numgrad.memory.track() as m, context():
            out = model(x)
        assert out is not None
        return m.nodes, m.saved_tensors, m.saved_bytes

    taped = kept(data.clone().requires_grad_())
    assert taped[0] > 60 and taped[2] > 1 << 20
    assert kept(data) == taped
    assert kept(data.clone().requires_grad_().detach()) == taped
    assert kept(Variable(data, requires_grad=False)) == taped
    assert kept(data, torch.no_grad) == (0, 0, 0)
    assert kept(data, torch.inference_mode) == (0, 0, 0)
    assert kept(Variable(data, volatile=True)) == (0, 0, 0)
    for param in model.parameters():
        param.requires_grad = False
    assert kept(data) == (0, 0, 0)


def test_the_benchmark_shows_which_ways_free_the_tape():
    rows = benchmark_rows()
    counted = [(r["nodes"], r["saved_tensors"], r["saved_bytes"]) for r in rows]
    assert counted[0] == counted[1] == counted[2] and counted[0][2] > 1 << 20
    assert counted[3:] == [(0, 0, 0)] * 4
    assert [r["mode"] for r in rows[3:]] == [
        "parameters frozen",
        "no_grad",
        "inference_mode",
        "volatile",
    ]


def benchmark_rows():
    from numgrad.cli.memory import MODES, measure

    return [measure(mode, "resnet18", 1, 64) for mode in MODES]


# ----------------------------------------------------------------------- sampling, Q-learning


def test_gradients_reach_mean_and_std_through_a_reparameterised_sample():
    zeros, ones = Variable(torch.zeros(4)), Variable(torch.ones(4))
    mean = Variable(torch.randn(4), requires_grad=True)
    std = Variable(torch.rand(4) + 0.5, requires_grad=True)
    torch.manual_seed(7)
    noise = Normal(zeros, ones).sample()
    assert not noise.requires_grad
    z = mean + std * noise
    z.requires_grad_()
    action = torch.tanh(z)
    action.sum().backward()
    slope = 1 - np.tanh(z.data.numpy()) ** 2
    np.testing.assert_allclose(mean.grad.numpy(), slope, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(std.grad.numpy(), slope * noise.numpy(), rtol=1e-5, atol=1e-7)

    by_hand = (bits(z), bits(mean.grad), bits(std.grad))
    mean.grad = std.grad = None
    torch.manual_seed(7)
    z = Normal(mean, std).rsample()
    torch.tanh(z).sum().backward()
    assert (bits(z), bits(mean.grad), bits(std.grad)) == by_hand


def test_target_network_of_q_learning():
    torch.manual_seed(0)
    policy, target = nn.Linear(4, 2), nn.Linear(4, 2)
    target.load_state_dict(policy.state_dict())
    optimizer = optim.RMSprop(policy.parameters())
    state, action = Variable(torch.randn(8, 4)), Variable(torch.LongTensor([[0], [1]] * 4))
    next_state, reward = Variable(torch.randn(8, 4), volatile=True), Variable(torch.randn(8))

    q = policy(state).gather(1, action)
    with numgrad.memory.track() as m:
        t = target(next_state).max(1)[0]
    assert t.volatile and (m.nodes, m.saved_bytes) == (0, 0)
    # Now we don't want to mess up the loss with a volatile flag.
    t.volatile = False
    assert not t.volatile and not t.requires_grad and t.creator is None
    expected = t * 0.999 + reward
    loss = F.smooth_l1_loss(q.squeeze(1), expected)
    assert loss.requires_grad and not loss.volatile
    before = [bits(p) for p in policy.parameters()], [bits(p) for p in target.parameters()]
    optimizer.zero_grad()
    loss.backward()
    for param in policy.parameters():
        param.grad.data.clamp_(-1, 1)
    optimizer.step()
    assert all(bits(p) != b for p, b in zip(policy.parameters(), before[0], strict=True))
    assert [bits(p) for p in target.parameters()] == before[1]
    assert all(p.grad is None for p in target.parameters())


def test_no_story_warns_that_volatile_was_removed():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = Variable(torch.randn(2, 2), volatile=True)
        assert x.volatile and (x + 1).volatile
