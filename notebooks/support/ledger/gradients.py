"""Claims about gradients, of one process: clipping, accumulating, scaling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.ledger.book import Observation, claim


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def _tower(seed: int = 0, layers: int = 8) -> nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    made = nn.Sequential(*(nn.Linear(8, 8, dtype=torch.float64) for _ in range(layers)))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 3)
    return made


@claim(
    "Clipping by stage is not clipping the model",
    "pytorch/torchtitan#596 (2024)",
    "https://github.com/pytorch/torchtitan/issues/596",
    "clip_grad_norm_ on a pipeline's rank sees the gradients of one stage, so it does not clip as on the whole model.",
)
def clipping_by_stage(stages: int = 8, long: float = 0.01, wide: float = 1e6) -> Observation:
    """Clip each stage by itself to the same norm, and look at the whole gradient."""
    norms = []
    for max_norm in (long, wide):
        model = _tower()
        model(torch.ones(4, 8, dtype=torch.float64)).square().mean().backward()
        wanted = min(max_norm, float(_flat(model).norm()))
        for j in range(stages):
            size = len(model) // stages
            nn.utils.clip_grad_norm_(model[size * j : size * (j + 1)].parameters(), max_norm)
        norms.append(float(_flat(model).norm()) / wanted)
    saw = (
        f"With {stages} stages the whole gradient is {norms[0]:.2f} times as long as it should be where each stage is "
        f"longer than max_norm, and {norms[1]:.2f} times where none is."
    )
    settings = ("stages are longer than max_norm", "no stage is longer than max_norm")
    return Observation(
        saw, {s: abs(norm - 1) > 0.01 for s, norm in zip(settings, norms, strict=True)}, {"times": norms[0]}
    )


@claim(
    "Accumulating equals the full batch",
    "Hugging Face, Fixing gradient accumulation (2024)",
    "https://huggingface.co/blog/gradient_accumulation",
    "Accumulated gradients should equal those of the full batch; if each part takes the mean over its own tokens they "
    "don't.",
)
def accumulating_equals_the_full_batch(
    unequal: Sequence[int] = (12, 3, 7, 2), equal: Sequence[int] = (6, 6, 6, 6)
) -> Observation:
    """Compare the accumulated gradient with that of one batch, by the share that it is off."""
    off = {
        "parts have equally many tokens": _off(equal, summed=False),
        "losses are summed, and divided once by all tokens": _off(unequal, summed=True),
        "each part is averaged over its own tokens": _off(unequal, summed=False),
    }
    equally, once, apart = off.values()
    saw = (
        f"Parts of {', '.join(map(str, unequal))} tokens, each averaged by itself, give a gradient {apart:.0%} off; "
        f"summed and divided once it is {once:.0%} off, and with equal parts {equally:.0%}."
    )
    return Observation(
        saw.replace("%", " %"),
        {setting: share < 1e-9 for setting, share in off.items()},
        {"off": round(apart, 3)},
    )


def _off(parts: Iterable[int], *, summed: bool) -> float:
    sizes = list(parts)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(sum(sizes), 8, generator=generator, dtype=torch.float64)
    words = torch.randint(8, (sum(sizes),), generator=generator)
    whole = _tower(layers=2)
    F.cross_entropy(whole(rows), words).backward()  # type: ignore[no-untyped-call]
    cut = _tower(layers=2)
    for x, y in zip(torch.split(rows, sizes), torch.split(words, sizes), strict=True):
        loss = F.cross_entropy(cut(x), y, reduction="sum" if summed else "mean")
        share = loss / (sum(sizes) if summed else len(sizes))
        share.backward()  # type: ignore[no-untyped-call]
    return float((_flat(cut) - _flat(whole)).norm() / _flat(whole).norm())


@claim(
    "Adam ignores the scale of gradients",
    "Kingma and Ba, Adam (2014), section 2.1",
    "https://arxiv.org/abs/1412.6980",
    "The size of Adam's steps does not change if all gradients are multiplied by a number.",
    slack=0.01,
)
def adam_ignores_the_scale(
    times: float = 8.0, gradients: Sequence[float] = (1.0, 1e-8), decay: float = 0.0
) -> Observation:
    """Train one weight vector with gradients as they are and `times` as large, and compare how far it went."""
    changes = []
    for size in gradients:
        plain, scaled = (_moved(factor, decay) for factor in (size, size * times))
        changes.append(float((scaled - plain).norm() / plain.norm()))
    saw = (
        f"With gradients {times:g} times as large, 20 steps lead {changes[0]:.1%} further if they are about "
        f"{gradients[0]:g}, and {changes[1]:.0%} further at {gradients[1]:g}, which is eps."
    )
    settings = ("gradients are far above eps", "gradients are as small as eps")
    holds = {setting: change < 0.001 for setting, change in zip(settings, changes, strict=True)}
    return Observation(saw.replace("%", " %"), holds, {"small": changes[1]})


def _moved(factor: float, decay: float) -> Tensor:
    """Return how far 20 steps of Adam move a weight; decay: that much of the weight is added to its gradient."""
    generator = torch.Generator().manual_seed(2)
    weight = torch.ones(16, dtype=torch.float64, requires_grad=True)
    start = weight.detach().clone()
    optimizer = torch.optim.Adam([weight], lr=0.01, weight_decay=decay)
    for _ in range(20):
        weight.grad = factor * (0.5 + torch.rand(16, generator=generator, dtype=torch.float64))
        optimizer.step()
    return weight.detach() - start
