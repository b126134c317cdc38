"""Famous wrong answers of notebook 03: a sentence for each, and what of the solution's text stands otherwise in it."""

from __future__ import annotations

# ---- exercise 1: the share of a rank

# fmt: off
OF_SHARE = {
    "Nothing is padded or dropped: the ranks get shares of different lengths.":
        ("(order * times)[:total]", "order"),
    "You padded with 0, or with 0, 1, 2 …: torch repeats the head of the order, whatever it is.":
        ("(order * times)[:total]", "[*order, *range(total)][:total]"),
    "You padded from the end of the order: torch repeats its head.":
        ("(order * times)[:total]", "(order + order[::-1] * times)[:total]"),
    "You padded with the tail of the order: torch repeats its head.":
        ("(order * times)[:total]", "[*order, *(order * times)[len(order) - total :]][:total]"),
    "You appended the head once: with more than 2 N positions it has to be repeated again.":
        ("order * times", "order * 2"),
    "A rank that lacks one took its own first index again: pad the order, which all ranks share.":
        ("(order * times)[:total]", "order",
         "order[rank::world_size]", "[*order[rank::world_size], *order[rank : rank + 1]][:steps]"),
    "You cut contiguous blocks: rank r takes positions r, r + W, r + 2 W, …":
        ("order[rank::world_size]", "order[rank * steps :][:steps]"),
    "drop_last cut the head of the order: it cuts the tail.":
        ("[:total]", "[:total] if total >= len(order) else order[len(order) - total :]"),
    "drop_last=True still pads.": ("if drop_last", "if False"),
    "Without drop_last you round down, too: then an index is given to nobody.": ("if drop_last", "if True"),
    "drop_last is the wrong way round: it drops where it should pad.": ("if drop_last", "if not drop_last"),
    "Rounding up is not floor + 1: where W divides N, the two differ.":
        ("-(-len(order) // world_size)", "len(order) // world_size + 1"),
    "You rounded to the nearest: where W does not divide N, the shares are rounded up, or down with drop_last.":
        ("len(order) // world_size if drop_last else -(-len(order) // world_size)", "round(len(order) / world_size)"),
    "(N − W) / W, rounded up, is one step too few where W divides N.":
        ("len(order) // world_size if drop_last", "-(-(len(order) - world_size) // world_size) if drop_last"),
    "You dealt by what an index is: its position in the order decides, and nothing else.":
        ("order[rank::world_size]", "[index for index in order if index % world_size == rank]"),
    "You keep what an earlier call has made of another order of this length: only the arguments count.":
        ("drop_last=False):", "drop_last=False, kept={}):",
         "    steps =", "    order = kept.setdefault((len(order), world_size, drop_last), order)\n    steps ="),
    "These are positions: return the indices that stand there, order[p].":
        ("(order *", "([*range(len(order))] *"),
    "You sorted the order: it is already the one that is dealt.": ("(order *", "(sorted(order) *"),
    "You sorted the share: a rank reads it as the order has it.":
        ("order[rank::world_size]", "sorted(order[rank::world_size])"),
    "Ranks count from 0, so rank r begins at position r.":
        ("order[rank::world_size]", "order[rank - 1 :: world_size]"),
}
# fmt: on

# ---- exercise 2: the class

_ARGUMENTS = "(self, dataset, num_replicas, rank, shuffle=True, seed=0, drop_last=False):"
_NOTED = "self.epoch = epoch"
_DRAWN = "self.seed + self.epoch"
_ORDER = "order = list(range(self.size))"
_DEALT = "return iter(share(order, self.world_size, self.rank, self.drop_last))"
_LENGTH = "self.size // self.world_size if self.drop_last else -(-self.size // self.world_size)"
_REFUSED = "if not 0 <= rank < num_replicas:"

OF_SAMPLER = {
    "Epoch 0 for ever: no order of yours knows what set_epoch was told.": (_DRAWN, "self.seed"),
    "The order of the first pass is kept for ever: a later set_epoch must give another one.": (
        _ORDER,
        "if hasattr(self, 'kept'):\n            return iter(self.kept)\n        order = list(range(self.size))",
        _DEALT,
        _DEALT.replace("return iter", "self.kept = ") + "\n        return iter(self.kept)",
    ),
    "Your samplers share what they keep: an order drawn for one seed is given out for another.": (
        "            order = torch.randperm(self.size, generator=generator).tolist()\n",
        "            shared = type(self).__dict__.get('shared') or {}\n            type(self).shared = shared\n"
        "            order = torch.randperm(self.size, generator=generator).tolist()\n"
        "            order = shared.setdefault((self.size, self.epoch), order)\n",
    ),
    "set_epoch adds to what an earlier call has left: after epoch 2, epoch 5 is still drawn from seed + 5.": (
        _NOTED,
        "self.epoch += epoch",
    ),
    "set_epoch never goes back: a job that starts again, or another run with the same sampler, must be able to.": (
        _NOTED,
        "self.epoch = max(self.epoch, epoch)",
    ),
    "set_epoch is heard once: every later call counts, too.": (_NOTED, "self.epoch = self.epoch or epoch"),
    "The rank is in the seed: then every rank has an order of its own, and some samples are read by nobody.": (
        _DRAWN,
        "self.seed + self.rank + self.epoch",
    ),
    "In epoch 0 seed 4 gives the order of seed 0: an order is drawn from seed + epoch.": (
        _DRAWN,
        "self.epoch",
    ),
    "Seed and epoch are added, nothing else is done with them.": (_DRAWN, "1000 * self.seed + self.epoch"),
    "shuffle=False still shuffles.": ("if self.shuffle:", "if True:"),
    "You gave out the dataset's items: a sampler gives indices, and needs nothing of the dataset but its length.": (
        "self.size = len(dataset)",
        "self.size = len(dataset)\n        self.dataset = dataset",
        "return iter(share(",
        "return iter(self.dataset[index] for index in share(",
    ),
    "You asked the dataset for its items: to read one may take a disk or a network, and their number is enough.": (
        "self.size = len(dataset)",
        "self.size = len(dataset)\n        self.dataset = dataset",
        _ORDER,
        "order = list(range(len(list(self.dataset))))",
    ),
    "Your __iter__ returns the sampler itself: a pass that begins while another runs would take over from it.": (
        _DEALT,
        _DEALT.replace("return ", "self.passed = ")
        + "\n        return self\n\n    def __next__(self):\n        return next(self.passed)",
    ),
    "You shuffled this rank's share: shuffle the order, which all ranks have alike, and take the share of that.": (
        "list(range(self.size))",
        "share(list(range(self.size)), self.world_size, self.rank, self.drop_last)",
        "torch.randperm(self.size, generator=generator).tolist()",
        "[order[p] for p in torch.randperm(len(order), generator=generator)]",
        _DEALT,
        "return iter(order)",
    ),
    "You shuffled with Python's random: torch draws by torch.randperm, which gives another order.": (
        f"generator = torch.Generator().manual_seed({_DRAWN})",
        f"random.Random({_DRAWN}).shuffle(order)",
        "            order = torch.randperm(self.size, generator=generator).tolist()\n",
        "",
    ),
    "You padded and then shuffled: shuffle the N indices first, pad after.": (
        "torch.randperm(self.size, generator=generator).tolist()",
        "[p % self.size for p in torch.randperm(max(self.size, len(self) * self.world_size), generator=generator)"
        ".tolist()]",
    ),
    "drop_last has no effect on what is given out: hand it on to share.": (
        "self.rank, self.drop_last))",
        "self.rank))",
    ),
    "len() is the share of this rank, not the dataset.": (_LENGTH, "self.size"),
    "len() is rounded up with drop_last.": (_LENGTH, "-(-self.size // self.world_size)"),
    "len() is rounded down without drop_last.": (_LENGTH, "self.size // self.world_size"),
    "len() is one too few with drop_last: (N − W) / W has to be rounded up.": (
        _LENGTH,
        "(self.size - self.world_size) // self.world_size if self.drop_last "
        "else -(-self.size // self.world_size)",
    ),
    "Your sampler counts its passes: only set_epoch changes the epoch.": (
        "return iter(",
        "self.epoch += 1\n        return iter(",
    ),
    "Your sampler counts before it draws, so it begins with epoch 1: only set_epoch changes the epoch.": (
        "order = list(",
        "self.epoch += 1\n        order = list(",
    ),
    "Your sampler begins with epoch 1: before any set_epoch it is epoch 0.": (
        "self.epoch = 0",
        "self.epoch = 1",
    ),
    "set_epoch(0) is not heard: who goes back to epoch 0 stays in the epoch before.": (
        _NOTED,
        "self.epoch = epoch or self.epoch",
    ),
    "A pass puts the epoch back to 0: only set_epoch changes it.": (
        "return iter(",
        "self.epoch = 0\n        return iter(",
    ),
    "The generator goes on from pass to pass: two passes in one epoch must be equal, so make one anew for each.": (
        "self.epoch = 0",
        "self.epoch = 0\n        self.generator = torch.Generator().manual_seed(seed)",
        f"torch.Generator().manual_seed({_DRAWN})",
        "self.generator",
    ),
    "A pass that has begun follows a later set_epoch: iter(sampler) must fix the whole share, in a list of its own.": (
        "return iter(",
        "yield from iter(",
    ),
    "A pass touches torch's global generator: what a dropout or an initial weight draws next is no longer what it was. "
    "Make a torch.Generator() of your own.": (
        f"torch.Generator().manual_seed({_DRAWN})",
        f"torch.manual_seed({_DRAWN})",
    ),
    "A pass touches the global generator of Python's random.": (_ORDER, f"random.seed(0)\n        {_ORDER}"),
    "Making a sampler of yours touches torch's global generator already.": (
        "self.epoch = 0",
        "self.epoch = 0\n        torch.rand(1)",
    ),
    "len() touches torch's global generator.": (
        f"return {_LENGTH}",
        f"torch.manual_seed(0)\n        return {_LENGTH}",
    ),
    "set_epoch touches torch's global generator.": (
        _NOTED,
        f"{_NOTED}\n        torch.manual_seed(epoch)",
    ),
    "A second pass disturbs the one that runs: both read one list of yours. Give each pass a list of its own.": (
        "self.epoch = 0",
        "self.epoch = 0\n        self.passed = []",
        _DEALT,
        _DEALT.replace("return iter(", "self.passed[:] = ")[:-1] + "\n        return iter(self.passed)",
    ),
    "Two samplers share an epoch: keep it in the object.": (
        _NOTED,
        "type(self).now = epoch",
        "self.epoch = 0",
        "type(self).now = 0",
        _DRAWN,
        "self.seed + self.now",
    ),
    "You take the epoch modulo something: its orders come round again.": (_NOTED, "self.epoch = epoch % 100"),
    "You take the seed modulo something: runs with seeds far apart get the same orders.": (
        "self.seed = seed",
        "self.seed = seed % 1000",
    ),
    "Where shuffle is not given, it is True.": ("shuffle=True", "shuffle=False"),
    "Where the seed is not given, it is 0.": ("seed=0", "seed=1"),
    "Where drop_last is not given, it is False.": ("drop_last=False", "drop_last=True"),
    "Scripts name the arguments: they are called dataset, num_replicas, rank, shuffle, seed and drop_last.": (
        _ARGUMENTS,
        _ARGUMENTS.replace("num_replicas", "world_size") + "\n        num_replicas = world_size",
    ),
    "A rank that does not exist is refused too late: raise when the sampler is made.": (
        _REFUSED,
        "if False:",
        _ORDER,
        f"if not 0 <= self.rank < self.world_size:\n            raise ValueError('no such rank')\n        {_ORDER}",
    ),
    "No rank is refused: whatever rank 3 of 3 reads, another rank reads, too, and nobody would say so.": (
        _REFUSED,
        "if False:",
    ),
    "Rank W is taken: W ranks are numbered 0 to W − 1.": (_REFUSED, "if not 0 <= rank <= num_replicas:"),
    "A rank below 0 is taken: −1 would read from the end of the order.": (
        _REFUSED,
        "if rank >= num_replicas:",
    ),
}

#: What is said of samplers that know of each other; whatever else one of them does may come of that.
OF_SHARING = tuple(why for why in OF_SAMPLER if why.startswith(("Your samplers share", "Two samplers share")))

# ---- exercise 3: the two controls

_GROUPS = "groups = epoch.flatten(0, 1)"
_IMAGES = "images = step.flatten()"

# fmt: off
OF_CONTROLS = {
    "new_steps tears groups up: then the company changes, too.": (_GROUPS, "groups = epoch.flatten()"),
    "new_steps calls the steps in another order: the images of a step still come together.":
        (_GROUPS, "groups = epoch"),
    "new_steps deals the groups of a step to other ranks: no group comes in another step.":
        (_GROUPS, "return torch.stack([step[torch.randperm(len(step), generator=generator)] for step in epoch])"),
    "new_steps parts some groups of a step too seldom: in their new step they meet again.":
        ("groups[places]", "groups.roll(int(places[0]), 0)"),
    "new_company only puts the images of a group in another order: each image keeps its company.":
        ("images[places].view_as(step)", "step[:, torch.randperm(step.shape[1], generator=generator)]"),
    "new_company puts the groups of a step in another order: each image keeps its company.":
        (_IMAGES, "images = step"),
    "new_company deals images beyond their step: then the images of a step change, too.":
        ("return torch.stack(steps)",
         "images = epoch.flatten()\n    places = torch.randperm(len(images), generator=generator)\n"
         "    return images[places].view_as(epoch)"),
    "new_steps touches torch's global generator: whoever draws from it next gets other numbers.":
        (", generator=generator", ""),
    "new_company touches torch's global generator: whoever draws from it next gets other numbers.":
        ("len(images), generator=generator", "len(images)"),
    "new_steps does not go on from where the generator stands: every epoch is dealt alike.":
        (_GROUPS, "generator.manual_seed(generator.initial_seed())\n    groups = epoch.flatten(0, 1)"),
    "new_company does not go on from where the generator stands: every epoch is dealt alike, the company frozen anew.":
        ("steps = []", "steps = []\n    generator = torch.Generator().manual_seed(generator.initial_seed())"),
    "new_company leaves some groups as they were: every image needs other company.":
        (_IMAGES, "images = step[: len(step) // 2].flatten()",
         "images[places].view_as(step)",
         "torch.cat([images[places].view_as(step[: len(step) // 2]), step[len(step) // 2 :]])"),
    "new_company parts some images of a group too seldom: they keep each other's company.":
        (_IMAGES, "images = step.reshape(-1, 2) if step.numel() % 2 == 0 else step",
         "images[places].view_as(step)", "images[places].reshape(step.shape)"),
    "new_company divides the step: the images of two parts never meet.":
        ("places = torch.randperm(len(images), generator=generator)",
         "half = len(images) // 2\n        parts = [torch.randperm(half, generator=generator) for _ in range(2)]\n"
         "        places = torch.cat([parts[0], half + parts[1]])"),
    "new_steps deals within a part of the epoch: no group ever comes in a step of another part.":
        ("places = torch.randperm(len(groups), generator=generator)",
         "half = len(groups) // 2\n    parts = [torch.randperm(half, generator=generator) for _ in range(2)]\n"
         "    places = torch.cat([parts[0], half + parts[1]])"),
    "Images of two groups that never meet stand at the same place in them: deal all images of a step alike.":
        ("images[places].view_as(step)",
         "torch.cat([step[:, :1], step[:, 1:].flatten()[torch.randperm(step[:, 1:].numel(), generator=generator)]"
         ".view_as(step[:, 1:])], 1)"),
    "new_steps leaves some groups in their step: each is to come elsewhere.":
        ("torch.randperm(len(groups), generator=generator)",
         "torch.cat([torch.randperm(len(groups) - 1, generator=generator), torch.tensor([len(groups) - 1])])"),
    "new_steps has a few deals and draws one of them: chance is to reach all that there are.":
        ("groups = epoch.flatten(0, 1)", "few = int(torch.randint(512, (), generator=generator))\n"
         "    generator = torch.Generator().manual_seed(few)\n    groups = epoch.flatten(0, 1)"),
    "new_company has a few deals and draws one of them: chance is to reach all that there are.":
        ("steps = []", "few = int(torch.randint(512, (), generator=generator))\n"
         "    generator = torch.Generator().manual_seed(few)\n    steps = []"),
    "A float is no index: `images[rows]` needs integers, as the epoch has them.":
        ("groups[places].view_as(epoch)", "groups[places].view_as(epoch).float()"),
    "You wrote 8 groups of 4: the epoch's shape says how many there are.":
        ("groups[places].view_as(epoch)", "groups[places].view(-1, 8, 4)"),
    "new_steps only moves all groups by one place: every epoch would be the same again.":
        ("groups[places]", "groups.roll(1, 0)"),
    "The next epoch would begin from what you have left there: make a new tensor.":
        ("steps.append(images[places].view_as(step))", "step.copy_(images[places].view_as(step))",
         "torch.stack(steps)", "epoch"),
}
# fmt: on

# ---- exercise 4: the answers in order

# fmt: off
OF_ORDER = {
    "They are still in the order of arrival: a batch holds one rank after the other, the dataset was dealt in turns.":
        ("_turns(gathered)", "_flat(map(_flat, gathered))"),
    "One rank's answers stand after the other's: the ranks took turns, index by index.":
        ("_turns(gathered)", "_flat(_flat(batch[rank] for batch in gathered) for rank in range(len(gathered[0])))"),
    "You return each turn of the ranks by itself: return one list of answers.":
        ("_turns(gathered)", "[turn for batch in gathered for turn in zip(*batch)]"),
    "You return a list for each turn of the ranks: return one list of answers.":
        ("_turns(gathered)", "[list(turn) for batch in gathered for turn in zip(*batch)]"),
    "You zipped the batches: what stands side by side are then the batches of one rank, not the ranks of one batch.":
        ("_turns(gathered)[:size]", "list(zip(*gathered))"),
    "The order is right, but the padding is still there: cut at size.": ("[:size]", ""),
    "You cut each batch at size: the padding stands at the end of all batches together, so cut once, last.":
        ("_turns(gathered)[:size]", "_flat(_turns([batch])[:size] for batch in gathered)"),
    "You cut at the front: the padding stands at the end.": ("[:size]", "[-size:]"),
    "The last batch is missing: it may be shorter than the others, and belongs to the dataset.":
        ("_turns(gathered)", "_turns(gathered[:-1])"),
    "You sorted the answers: they may be anything. Their place tells the sample, not their value.":
        ("_turns(gathered)", "sorted(_turns(gathered))"),
    "You left out answers that are None: an answer may be anything.":
        ("_turns(gathered)", "[answer for answer in _turns(gathered) if answer is not None]"),
    "You left out answers that count as false, such as 0 and False: an answer may be anything.":
        ("_turns(gathered)", "[answer for answer in _turns(gathered) if answer]"),
    "You opened an answer that is a list or tuple: an answer may be anything.":
        ("_turns(gathered)", "[part for answer in _turns(gathered) for part in "
         "(answer if isinstance(answer, (list, tuple)) else [answer])]"),
    "You took out answers that are equal: two samples may well have the same answer.":
        ("_turns(gathered)[:size]", "list(dict.fromkeys(_turns(gathered)))"),
}
# fmt: on

# ---- exercise 5: one score for all ranks

_LOCAL = "ddp.module(x)"
_SUM = "dist.all_reduce(counts)"
_QUOTIENT = "return int(counts[0]) / int(counts[1])"

OF_SCORE = {
    "You call the wrapper with gradients: each forward broadcasts, and the ranks have unequally many.": (
        _LOCAL,
        "ddp(x)",
        "torch.no_grad()",
        "torch.enable_grad()",
    ),
    "Under no_grad the wrapper's first forward still broadcasts, and a rank without a batch has no first forward.": (
        _LOCAL,
        "ddp(x)",
    ),
    "Not every rank has rank 0's buffers here, so the hits are not those of rank 0's model.": (
        "dist.broadcast(buffer, 0)",
        "pass",
    ),
    "The running means are rank 0's, and the running variances are not: every buffer of the model counts.": (
        "for buffer in ddp.module.buffers():\n        dist.broadcast(buffer, 0)",
        "for name, buffer in ddp.module.named_buffers():\n        if 'var' not in name:\n"
        "            dist.broadcast(buffer, 0)",
    ),
    "A buffer beside the running averages is not rank 0's: every buffer of the model counts.": (
        "for buffer in ddp.module.buffers():\n        dist.broadcast(buffer, 0)",
        "for name, buffer in ddp.module.named_buffers():\n        if 'running' in name:\n"
        "            dist.broadcast(buffer, 0)",
    ),
    "You took the mean of all ranks' buffers: rank 0's are asked for, with which its model will be saved.": (
        "dist.broadcast(buffer, 0)",
        "dist.all_reduce(buffer)\n        buffer.copy_(buffer / dist.get_world_size())",
    ),
    "The buffers are the last rank's: rank 0's are asked for, with which its model will be saved.": (
        "dist.broadcast(buffer, 0)",
        "dist.broadcast(buffer, dist.get_world_size() - 1)",
    ),
    "A count of yours stops growing: a float of 32 bits or fewer that has come to 2**24 stays there if you add 1.": (
        "dtype=torch.int64",
        "dtype=torch.float32",
    ),
    "The ranks' counts travel as a float of 32 bits or fewer, which rounds them beyond 2**24: send int64 or float64.": (
        _SUM,
        f"counts = counts.float()\n    {_SUM}",
    ),
    "A quotient is rounded: add up whole counts, and divide at the end.": (
        "(ddp.module(x).argmax(1) == y).sum()",
        "(ddp.module(x).argmax(1) == y).float().mean().item() * len(y)",
        "dtype=torch.int64",
        "dtype=torch.float64",
        _QUOTIENT,
        "return float(counts[0]) / float(counts[1])",
    ),
    "Your counts run over: their type holds no number so large.": ("dtype=torch.int64", "dtype=torch.uint8"),
    "Count, and keep nothing of an image.": (
        "            counts[1] += len(y)",
        "            counts[1] += len(y)\n            kept = [*locals().get('kept', []), x]",
    ),
    "You took the mean of the ranks' scores: a sample on a short share weighs more.": (
        _SUM,
        "mean = torch.tensor([int(counts[0]) / max(1, int(counts[1]))], dtype=torch.float64)\n"
        "    dist.all_reduce(mean)",
        _QUOTIENT,
        "return float(mean) / dist.get_world_size()",
    ),
    "This is the score of this rank's share alone: nothing is summed over the ranks.": (_SUM, "pass"),
    "You sum after every batch, and the ranks have unequally many: sum once, after the loop.": (
        f"    {_SUM}\n",
        "",
        "counts[1] += len(y)",
        f"counts[1] += len(y)\n            {_SUM}",
    ),
    "You broadcast in the loop, and the ranks have unequally many batches: once, before it, is enough.": (
        "        for x, y in loader:",
        "        for x, y in loader:\n            for buffer in ddp.module.buffers():\n"
        "                dist.broadcast(buffer, 0)",
    ),
    "The model is still in train(): batch normalisation takes each batch's own mean.": ("ddp.eval()", "pass"),
    "You divided by the number of batches: batches differ in length.": (
        "counts[1] += len(y)",
        "counts[1] += 1",
    ),
}
