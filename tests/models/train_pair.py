#!/usr/bin/env python3
"""Train the pytiny pair: a small Qwen3 target on Python source, and a DFlash drafter for it.

    train_pair.py corpus OUT.json.xz [--lib DIR]    pack the standard library of a CPython (no GPU needed)
    train_pair.py train CORPUS OUT [--log FILE] ... tokenizer, target, drafter, evaluation -> OUT/target, OUT/draft
    train_pair.py centre CORPUS OUT [--log FILE]     then: smaller logits, same probabilities (CPU, half a minute)

Stages of ``train``:
1. tokenizer   byte-level BPE, special tokens last, so that token id 0 is an ordinary and frequent token;
2. target      next-token prediction on the corpus, float32 weights, bfloat16 arithmetic;
3. polish      the target answers corpus prompts, mostly greedily; it learns the answers that do not loop, and unlearns
               (by unlikelihood) the tokens with which an answer repeats itself;
4. drafter     the polished target answers other corpus prompts; the drafter learns all masked positions of random
               blocks in these answers at once, with weights that fall exponentially along the block;
5. evaluation  evaluate_pair.py on prompts.jsonl and on windows of held-out files.

Files are held out by a hash of their path: neither tokenizer nor target nor drafter sees them.
Lengths of the stages are given in seconds, the learning rate follows the share of time used.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import math
import random
import shutil
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from evaluate_pair import distinct, evaluate, loops, read_prompts
from pytiny_model import Config, Drafter, Target, load_drafter, load_target, write_module
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
EOS, MASK, BOS, PAD = "<|endoftext|>", "<|mask|>", "<|startoftext|>", "<|pad|>"
SPECIAL = (EOS, MASK, BOS, PAD)
LEFT_OUT = ("site-packages/", "encodings/", "pydoc_data/", "lib2to3/tests/data/", "test/test_lib2to3/data/")
SIZE_LIMIT = 12_000_000
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
BEGAN = time.time()


def log(*words: object) -> None:
    """Print with the seconds since start."""
    print(f"[{time.time() - BEGAN:6.1f}s]", *words, flush=True)


# ---------------------------------------------------------------------------------------------------- corpus


def pack_corpus(lib: Path, version: str, out: Path) -> None:
    """Write {"version", "files": {path: text}} of a standard library folder, compressed."""
    files: dict[str, str] = {}
    for path in sorted(lib.rglob("*.py")):
        name = path.relative_to(lib).as_posix()
        if name.startswith(LEFT_OUT) or path.stat().st_size > 160_000:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if len(text) > 200 and max(map(len, text.splitlines())) < 400:
            files[name] = text
    out.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(out, "wt", preset=6) as stream:
        json.dump({"version": version, "files": files}, stream)
    log(f"{len(files)} files, {sum(map(len, files.values()))} characters, {out.stat().st_size} bytes packed")


def held_out(name: str) -> bool:
    """One file in 33, chosen by its path."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % 33 == 0


def make_tokenizer(texts: list[str], size: int) -> tuple[Tokenizer, dict[str, Any]]:
    """Byte-level BPE of ``size`` entries, special tokens last, the most frequent token first."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=size - len(SPECIAL), initial_alphabet=alphabet, show_progress=False),
    )
    trained = json.loads(raw.to_str())["model"]
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in trained["merges"]]
    names = sorted(trained["vocab"], key=trained["vocab"].__getitem__)
    counts = Counter(i for e in raw.encode_batch(texts[::7]) for i in e.ids)
    common = counts.most_common(1)[0][0]
    names[0], names[common] = names[common], names[0]
    vocabulary = {name: i for i, name in enumerate([*names, *SPECIAL])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    assert tokenizer.get_vocab_size() == size
    assert tokenizer.token_to_id(EOS) == size - len(SPECIAL)
    return tokenizer, {"vocabulary": size, "token_0": names[0]}


def write_tokenizer(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """tokenizer.json and a tokenizer_config.json that transformers 4 and 5 both read."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "bos_token": BOS,
        "pad_token": PAD,
        "mask_token": MASK,
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


class Text:
    """Tokenised files in one row, and the places where a statement starts at the left margin."""

    def __init__(self, tokenizer: Tokenizer, files: list[str], device: torch.device) -> None:
        eos = tokenizer.token_to_id(EOS)
        ids: list[int] = []
        starts: list[int] = []
        for text, encoded in zip(files, tokenizer.encode_batch(files), strict=True):
            for i, (at, _) in enumerate(encoded.offsets):
                if (at == 0 or text[at - 1] == "\n") and (text[at].isalnum() or text[at] in "@_#"):
                    starts.append(len(ids) + i)
            ids += [*encoded.ids, eos]
        self.ids = torch.tensor(ids, device=device)
        self.starts = torch.tensor(starts, device=device)

    def places(self, count: int, length: int) -> Tensor:
        """Random positions, half of them statement starts, with ``length`` tokens after them."""
        device, last = self.ids.device, len(self.ids) - length - 1
        anywhere = torch.randint(0, last, (count,), device=device)
        chosen = self.starts[torch.randint(0, len(self.starts), (count,), device=device)].clamp(max=last)
        return torch.where(torch.rand(count, device=device) < 0.5, anywhere, chosen)

    def windows(self, count: int, length: int) -> Tensor:
        """[count, length + 1] tokens."""
        return self.ids[self.places(count, length)[:, None] + torch.arange(length + 1, device=self.ids.device)]

    def prompts(self, count: int, shortest: int, longest: int) -> list[list[int]]:
        """Token lists of random length, without end-of-text."""
        rows = self.windows(count, longest).tolist()
        eos, out = int(self.ids[-1]), []
        for row in rows:
            row = row[: random.randint(shortest, longest)]
            out.append(row[row.index(eos) + 1 :] if eos in row else row)
        return [row for row in out if len(row) >= shortest and eos not in row]


# ---------------------------------------------------------------------------------------------------- training


def target_config(tokenizer: Tokenizer, args: argparse.Namespace) -> Config:
    """config.json of the target; rope_theta stands where transformers 4 and where 5 looks for it."""
    ident = tokenizer.token_to_id
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": args.hidden,
        "intermediate_size": args.inner,
        "num_hidden_layers": args.layers,
        "num_attention_heads": args.hidden // args.head_dim,
        "num_key_value_heads": max(1, args.hidden // args.head_dim // 2),
        "head_dim": args.head_dim,
        "max_position_embeddings": args.context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": args.layers,
        "bos_token_id": ident(BOS),
        "eos_token_id": ident(EOS),
        "pad_token_id": ident(PAD),
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }


def drafter_config(target: Config, tokenizer: Tokenizer, args: argparse.Namespace) -> Config:
    """config.json of the drafter, in the fields that SGLang's DFLASH reads."""
    taps = [int(x) for x in args.taps.split(",")]
    assert max(taps) < target["num_hidden_layers"] - 1, "SGLang cannot capture the output of the last layer"
    own = {k: v for k, v in target.items() if k not in ("architectures", "rope_parameters")}
    return {
        "architectures": ["DFlashDraftModel"],
        **own,
        "num_hidden_layers": args.draft_layers,
        "max_window_layers": args.draft_layers,
        "num_target_layers": target["num_hidden_layers"],
        "block_size": args.block,
        "dflash_config": {
            "mask_token": MASK,
            "mask_token_id": tokenizer.token_to_id(MASK),
            "target_layer_ids": taps,
            "block_size": args.block,
        },
    }


def optimiser(module: nn.Module, rate: float, decay: float) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only, embedding excepted."""
    matrices = [p for n, p in module.named_parameters() if p.ndim > 1 and "embed" not in n]
    others = [p for n, p in module.named_parameters() if p.ndim <= 1 or "embed" in n]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=next(module.parameters()).is_cuda)


def schedule(opt: torch.optim.Optimizer, rate: float, seconds: float, warm_up: int = 200) -> Iterator[int]:
    """Yield step numbers until ``seconds`` are over; cosine learning rate over the time used."""
    began, step = time.time(), 0
    while (share := (time.time() - began) / seconds) < 1:
        now = rate * min(1.0, (step + 1) / warm_up) * (0.02 + 0.49 * (1 + math.cos(math.pi * share)))
        for group in opt.param_groups:
            group["lr"] = now
        yield step
        step += 1


def descend(opt: torch.optim.Optimizer, module: nn.Module, loss: Tensor) -> None:
    """One clipped optimiser step."""
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    opt.step()


def token_losses(target: Target, rows: Tensor, z: float = 0.0) -> Tensor:
    """Cross-entropy of every next token in rows [batch, tokens + 1], plus ``z`` times the squared log-normaliser."""
    with torch.autocast(rows.device.type, torch.bfloat16):
        logits = target.lm_head(target.hidden(rows[:, :-1])[0])
    logits = logits.float().flatten(0, 1)
    each = F.cross_entropy(logits, rows[:, 1:].flatten(), reduction="none")
    return each + z * logits.logsumexp(-1).square() if z else each


@torch.no_grad()
def held_out_loss(target: Target, text: Text, length: int) -> float:
    """Loss on a fixed set of held-out windows."""
    offsets = torch.linspace(0, len(text.ids) - length - 2, 32, device=text.ids.device).long()
    rows = text.ids[offsets[:, None] + torch.arange(length + 1, device=text.ids.device)]
    return round(token_losses(target, rows).mean().item(), 4)


def train_target(target: Target, text: Text, check: Text, args: argparse.Namespace) -> dict[str, Any]:
    """Stage 2."""
    for name, p in target.named_parameters():
        if p.ndim > 1:
            depth = math.sqrt(2 * args.layers) if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            nn.init.normal_(p, std=0.02 / depth)
    opt, curve, step = optimiser(target, args.rate, 0.1), [], -1
    loss = torch.zeros(())
    for step in schedule(opt, args.rate, args.target_seconds):
        loss = token_losses(target, text.windows(args.batch, args.window), 1e-4).mean()
        descend(opt, target, loss)
        if step % args.every == 0:
            curve.append([step, round(loss.item(), 4), held_out_loss(target, check, args.window)])
            log("target step, loss, held-out loss:", *curve[-1])
    curve.append([step, round(loss.item(), 4), held_out_loss(target, check, args.window)])
    log("target done:", *curve[-1])
    return {"steps": step + 1, "tokens_per_step": args.batch * args.window, "curve": curve}


@dataclass
class Answers:
    """Rows of prompt and answer, padded to one width, and what is known of them."""

    rows: Tensor
    starts: Tensor  # length of the prompt
    ends: Tensor  # length of prompt and answer
    sound: Tensor  # does not end in a loop, and most of its 4-grams differ
    repeated: Tensor  # per token: ends an 8-gram that the answer had before
    stats: dict[str, Any]


def answer(target: Target, text: Text, count: int, greedy: float, heat: float, args: argparse.Namespace) -> Answers:
    """Let the target answer ``count`` prompts, a share ``greedy`` greedily, the rest at temperature ``heat``."""
    prompts = text.prompts(count, args.prompt_min, args.prompt_max)
    heats = [0.0 if random.random() < greedy else heat for _ in prompts]
    eos, width = target.config["eos_token_id"], args.prompt_max + args.answer
    rows, starts, ends, sound, repeated = [], [], [], [], []
    looping, spread = 0, 0.0
    for prompt, reply in zip(prompts, generate_half(target, prompts, args.answer, heats), strict=True):
        if len(reply) < 8:
            continue
        row, seen, marks = prompt + reply, set(), [False] * width
        for i in range(len(prompt) + 7, len(row)):
            gram = tuple(row[i - 7 : i + 1])
            marks[i] = gram in seen
            seen.add(gram)
        loop, share = loops(reply), distinct(reply)
        looping, spread = looping + loop, spread + share
        rows.append(row + [eos] * (width - len(row)))
        starts.append(len(prompt))
        ends.append(len(row))
        sound.append(not loop and share >= 0.6)
        repeated.append(marks)
    count = len(rows)
    stats = {
        "answers": count,
        "looping": round(looping / count, 3),
        "sound": round(sum(sound) / count, 3),
        "mean_distinct_4": round(spread / count, 3),
        "tokens": sum(ends) - sum(starts),
    }
    log("answers:", stats)
    device = target.lm_head.weight.device
    tensors = [torch.tensor(x, device=device) for x in (rows, starts, ends, sound, repeated)]
    return Answers(*tensors, stats)


def generate_half(target: Target, prompts: list[list[int]], new: int, heats: list[float] | None) -> list[list[int]]:
    """Generate with a bfloat16 copy of the target, as it will be served."""
    copy = Target(target.config)
    copy.load_state_dict(target.state_dict())
    return copy.to(target.lm_head.weight.device, torch.bfloat16).eval().generate(prompts, new, heats)


def polish(target: Target, text: Text, check: Text, args: argparse.Namespace) -> dict[str, Any]:
    """Stage 3: learn sound answers, unlearn tokens that repeat an 8-gram, go on with the corpus beside them."""
    before = answer(target, check, args.check_rows, 1.0, 0.0, args).stats
    own = answer(target, text, args.polish_rows, 0.8, 0.6, args)
    columns = torch.arange(1, own.rows.shape[1], device=own.rows.device)[None]
    inside = (columns >= own.starts[:, None]) & (columns < own.ends[:, None])
    learn = (inside & own.sound[:, None] & ~own.repeated[:, 1:]).float()
    unlearn = (inside & own.repeated[:, 1:]).float()
    opt, step, loss = optimiser(target, args.polish_rate, 0.05), -1, torch.zeros(())
    for step in schedule(opt, args.polish_rate, args.polish_seconds):  # noqa: B007
        pick = torch.randint(0, len(own.rows), (args.batch * 2,), device=own.rows.device)
        each = token_losses(target, own.rows[pick], 1e-4)
        good, bad = learn[pick].flatten(), unlearn[pick].flatten()
        unlikely = -torch.log1p(-torch.exp(-each.clamp(min=1e-3)))
        loss = (each * good).sum() / good.sum().clamp(min=1) + (unlikely * bad).sum() / bad.sum().clamp(min=1)
        loss = loss + 0.5 * token_losses(target, text.windows(max(1, args.batch // 4), args.window), 1e-4).mean()
        descend(opt, target, loss)
    after = answer(target, check, args.check_rows, 1.0, 0.0, args).stats
    return {
        "data": own.stats,
        "steps": step + 1,
        "last_loss": round(loss.item(), 4),
        "held_out_loss": held_out_loss(target, check, args.window),
        "held_out_greedy_answers_before": before,
        "held_out_greedy_answers_after": after,
    }


def set_mask_row(target: Target) -> None:
    """Give the mask token, which the target never sees, an embedding of ordinary size."""
    with torch.no_grad():
        table = target.model.embed_tokens.weight
        mask = target.config["vocab_size"] - len(SPECIAL) + SPECIAL.index(MASK)
        table[mask] = torch.randn(table.shape[1], device=table.device) * table[:mask].std()


class Blocks:
    """Random blocks of answers, as training batches of the drafter."""

    def __init__(self, target: Target, drafter: Drafter, answers: Answers) -> None:
        self.target, self.drafter = target, drafter
        self.rows, self.starts, self.ends = answers.rows, answers.starts, answers.ends

    def __call__(self, pick: Tensor, anchors: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draft logits, labels and validity, [batch, anchors, block - 1, ...]."""
        rows, start, end, block = self.rows[pick], self.starts[pick], self.ends[pick], self.drafter.block
        room = (end - 1 - start).clamp(min=1)[:, None]
        at = start[:, None] + (torch.rand(len(pick), anchors, device=rows.device) * room).long()
        with torch.no_grad():
            _, features = self.target.hidden(rows, self.drafter.taps)
            embedded = self.target.model.embed_tokens(self.drafter.block_ids(rows, at))
        assert features is not None
        look = at[:, :, None] + torch.arange(1, block, device=rows.device)
        labels = rows.gather(1, look.clamp(max=rows.shape[1] - 1).flatten(1)).view(look.shape)
        with torch.autocast(rows.device.type, torch.bfloat16):
            states = self.drafter(features.float(), embedded.float(), at, self.target.rope())[:, :, 1:]
            logits = F.linear(states, self.target.lm_head.weight)
        return logits.float(), labels, look < end[:, None, None]

    @torch.no_grad()
    def accept_length(self) -> float:
        """Mean accepted tokens + 1 of complete linear blocks at random anchors."""
        lengths = []
        for pick in torch.arange(len(self.rows), device=self.rows.device).split(64):
            logits, labels, valid = self(pick, 8)
            run = (logits.argmax(-1) == labels).long().cumprod(-1).sum(-1)
            lengths.append(run[valid.all(-1)].float())
        return round(1 + torch.cat(lengths).mean().item(), 3)


def train_drafter(
    target: Target, drafter: Drafter, text: Text, check: Text, args: argparse.Namespace
) -> dict[str, Any]:
    """Stage 4. ``target`` is the bfloat16 one that will be served."""
    own = answer(target, text, args.draft_rows, 0.85, 0.7, args)
    train = Blocks(target, drafter, own)
    test = Blocks(target, drafter, answer(target, check, args.check_rows, 1.0, 0.0, args))
    last = target.config["num_hidden_layers"] - args.draft_layers
    with torch.no_grad():  # start from the target's last layers
        for i, layer in enumerate(drafter.layers):
            layer.load_state_dict(target.model.layers[max(0, last + i)].state_dict())
        drafter.norm.load_state_dict(target.model.norm.state_dict())
        nn.init.normal_(drafter.fc.weight, std=0.02)
    device = own.rows.device
    along = torch.exp(-torch.arange(drafter.block - 1, device=device) / args.gamma)
    opt, curve, step, loss = optimiser(drafter, args.draft_rate, 0.02), [], -1, torch.zeros(())
    for step in schedule(opt, args.draft_rate, args.draft_seconds):
        pick = torch.randint(0, len(train.rows), (args.draft_batch,), device=device)
        logits, labels, valid = train(pick, args.anchors)
        weight = valid * along
        each = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
        loss = (each * weight.flatten()).sum() / weight.sum()
        descend(opt, drafter, loss)
        if step % args.every == 0:
            curve.append([step, round(loss.item(), 4), test.accept_length()])
            log("drafter step, loss, held-out accept length:", *curve[-1])
    curve.append([step, round(loss.item(), 4), test.accept_length()])
    log("drafter done:", *curve[-1])
    return {"data": own.stats, "steps": step + 1, "curve": curve}


# ---------------------------------------------------------------------------------------------------- command


def figures(pair: Path, tokenizer: Tokenizer, held: Text, args: argparse.Namespace, device: torch.device) -> Config:
    """Stage 5, on the stored files."""
    target, drafter = load_target(pair / "target", device), load_drafter(pair / "draft", device)
    own = [e.ids for e in tokenizer.encode_batch([r["text"] for r in read_prompts(HERE / "prompts.jsonl")])]
    windows = held.prompts(args.evaluate_windows, args.prompt_min, args.prompt_max)
    out = {}
    for name, prompts in (("prompts.jsonl", own), ("held_out_files", windows)):
        result = evaluate(target, drafter, prompts, args.evaluate_new)
        answers = result.pop("answers")
        result.pop("per_prompt")
        out[name] = result
        log(name, json.dumps(result))
        for prompt, answer in list(zip(prompts, answers, strict=True))[:3]:
            print(f"--- {tokenizer.decode(prompt)}\n>>> {tokenizer.decode(answer)}", flush=True)
    return out


def train(args: argparse.Namespace) -> None:
    """The ``train`` command."""
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with lzma.open(args.corpus, "rt") as stream:
        corpus = json.load(stream)
    names = sorted(corpus["files"])[: args.files]
    seen = [corpus["files"][n] for n in names if not held_out(n)]
    unseen = [corpus["files"][n] for n in names if held_out(n)]
    pair: Path = args.out
    record: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": ["train_pair.py", *sys.argv[1:]],
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "corpus": {
            "cpython": corpus["version"],
            "files_used": len(seen),
            "files_held_out": len(unseen),
            "characters": sum(map(len, seen)),
            "sha256": hashlib.sha256(json.dumps(corpus["files"], sort_keys=True).encode()).hexdigest(),
        },
    }
    times: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.time()
        result = work()
        times[name] = round(time.time() - began, 1)
        return result

    if args.base:  # tokenizer and target of an earlier run
        shutil.copytree(args.base, pair / "target", dirs_exist_ok=True)
        tokenizer = Tokenizer.from_file(str(pair / "target" / "tokenizer.json"))
    else:
        tokenizer, record["tokenizer"] = timed("tokenizer", lambda: make_tokenizer(seen, args.vocabulary))
        write_tokenizer(tokenizer, pair / "target", args.context)
    text, check = Text(tokenizer, seen, device), Text(tokenizer, unseen, device)
    record["corpus"] |= {"tokens": len(text.ids), "tokens_held_out": len(check.ids)}
    log("corpus:", record["corpus"])
    if args.base:
        target = load_target(pair / "target", device, torch.float32)
    else:
        target = Target(target_config(tokenizer, args)).to(device)
        record["target"] = timed("target", lambda: train_target(target, text, check, args))
        write_module(target, pair / "base")
    if args.polish_seconds:
        record["polish"] = timed("polish", lambda: polish(target, text, check, args))
    if not args.base or args.polish_seconds:
        set_mask_row(target)
        write_module(target, pair / "target")
        c = target.config
        generation = {"bos_token_id": c["bos_token_id"], "eos_token_id": c["eos_token_id"]}
        generation |= {"pad_token_id": c["pad_token_id"], "do_sample": False}
        (pair / "target" / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    served = load_target(pair / "target", device).requires_grad_(False)
    drafter = Drafter(drafter_config(served.config, tokenizer, args)).to(device)
    record["drafter"] = timed("drafter", lambda: train_drafter(served, drafter, text, check, args))
    write_module(drafter, pair / "draft")
    record["parameters"] = {
        "target": sum(p.numel() for p in served.parameters()),
        "drafter": sum(p.numel() for p in drafter.parameters()),
    }
    files = sorted(f for part in ("target", "draft") for f in (pair / part).iterdir())
    record["bytes"] = {f.relative_to(pair).as_posix(): f.stat().st_size for f in files}
    assert sum(record["bytes"].values()) < SIZE_LIMIT, record["bytes"]
    record["evaluation"] = timed("evaluation", lambda: figures(pair, tokenizer, check, args, device))
    record["seconds"] = times | {"all": round(time.time() - BEGAN, 1)}
    log("seconds:", record["seconds"], "parameters:", record["parameters"], "bytes:", record["bytes"])
    if args.log:
        args.log.write_text(json.dumps(record, indent=1) + "\n")


@torch.no_grad()
def centre(args: argparse.Namespace) -> None:
    """The ``centre`` command: subtract one vector c from every row of the LM head.

    This takes h.c from all logits of a position alike, so that probabilities stay what they are (but for rounding).
    c is the least-squares solution of h.c = logsumexp(logits): the logits become nearly log-probabilities, and the
    largest of them small numbers, which bfloat16 tells apart far better than numbers around 10."""
    random.seed(1)
    torch.manual_seed(1)
    folder: Path = args.pair / "target"
    with lzma.open(args.corpus, "rt") as stream:
        files = json.load(stream)["files"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    names = random.sample([n for n in sorted(files) if not held_out(n)], 60)
    text = Text(tokenizer, [files[n] for n in names], torch.device("cpu"))
    target = load_target(folder, dtype=torch.float32)
    prompts = text.prompts(args.rows, 24, 128)
    replies = generate_half(target, prompts, 128, None)
    rows = [torch.tensor([p + r]) for p, r in zip(prompts, replies, strict=True)]
    states = torch.cat([target.hidden(row)[0][0] for row in rows])
    head = target.lm_head.weight

    def spread(weight: Tensor) -> dict[str, float]:
        normaliser = (states @ weight.T).logsumexp(-1)
        return {"mean": round(normaliser.mean().item(), 3), "std": round(normaliser.std().item(), 3)}

    before = spread(head)
    goal = (states @ head.T).logsumexp(-1)
    gram = states.T @ states
    gram += 1e-4 * gram.diagonal().mean() * torch.eye(len(gram))
    head -= torch.linalg.solve(gram, states.T @ goal)
    record = {"positions": len(states), "before": before, "after": spread(head.bfloat16().float())}
    write_module(target, folder)
    log("log-normaliser of the target:", record)
    if args.log:
        whole = json.loads(args.log.read_text())
        whole["centre"] = {"command": ["train_pair.py", *sys.argv[1:]], "torch": torch.__version__, **record}
        args.log.write_text(json.dumps(whole, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    pack = commands.add_parser("corpus", help="pack the standard library of a CPython")
    pack.add_argument("out", type=Path)
    pack.add_argument("--lib", type=Path, default=Path(sysconfig.get_paths()["stdlib"]))
    pack.add_argument("--cpython", default=sys.version.split()[0], help="version that --lib belongs to")
    run = commands.add_parser("train", help="train and evaluate the pair")
    run.add_argument("corpus", type=Path)
    run.add_argument("out", type=Path)
    run.add_argument("--log", type=Path)
    run.add_argument("--base", type=Path, help="target folder of an earlier run: skip tokenizer and target training")
    run.add_argument("--files", type=int, default=10**9, help="use only the first files (for a trial)")
    run.add_argument("--seed", type=int, default=0)
    size = run.add_argument_group("sizes")
    size.add_argument("--vocabulary", type=int, default=1024)
    size.add_argument("--hidden", type=int, default=256)
    size.add_argument("--inner", type=int, default=448)
    size.add_argument("--layers", type=int, default=6)
    size.add_argument("--head-dim", type=int, default=64)
    size.add_argument("--context", type=int, default=4096)
    size.add_argument("--draft-layers", type=int, default=3)
    size.add_argument("--taps", default="1,3,4")
    size.add_argument("--block", type=int, default=16)
    work = run.add_argument_group("training")
    work.add_argument("--target-seconds", type=float, default=50)
    work.add_argument("--polish-seconds", type=float, default=14)
    work.add_argument("--draft-seconds", type=float, default=66)
    work.add_argument("--rate", type=float, default=3e-3)
    work.add_argument("--polish-rate", type=float, default=4e-4)
    work.add_argument("--draft-rate", type=float, default=2e-3)
    work.add_argument("--gamma", type=float, default=5.0, help="tokens after which a block position weighs 1/e")
    work.add_argument("--batch", type=int, default=16)
    work.add_argument("--window", type=int, default=1024)
    work.add_argument("--draft-batch", type=int, default=32)
    work.add_argument("--anchors", type=int, default=32)
    work.add_argument("--polish-rows", type=int, default=12288)
    work.add_argument("--draft-rows", type=int, default=24576)
    work.add_argument("--check-rows", type=int, default=256)
    work.add_argument("--prompt-min", type=int, default=24)
    work.add_argument("--prompt-max", type=int, default=192)
    work.add_argument("--answer", type=int, default=160)
    work.add_argument("--every", type=int, default=1000)
    work.add_argument("--evaluate-new", type=int, default=128)
    work.add_argument("--evaluate-windows", type=int, default=24)
    shift = commands.add_parser("centre", help="centre the logits of a trained target, without changing what it says")
    shift.add_argument("corpus", type=Path)
    shift.add_argument("pair", type=Path)
    shift.add_argument("--rows", type=int, default=96, help="answers to learn the vector from")
    shift.add_argument("--log", type=Path, help="record of the training, to be completed")
    args = parser.parse_args()
    if args.command == "corpus":
        pack_corpus(args.lib, args.cpython, args.out)
    elif args.command == "centre":
        centre(args)
    else:
        train(args)


if __name__ == "__main__":
    main()
