"""Checks of the offline decoder with real torch models on tiny vocabularies; run by the CPU environment's Python.

Prints a JSON object as its last line: check name -> null, or its traceback. See ``tests/kernels/checks.py``.
"""

from __future__ import annotations

import collections
import contextlib
import io
import itertools
import json
import math
import sys
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "sglang_cpu" / "stubs"))

import torch
from ddtree.adapters import tracing
from ddtree.build.shape import Shape
from ddtree.tree.trace import TraceHeader
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from ddtree_ops.baseline import compare, torchfile, traces
from ddtree_ops.baseline.offline import check, decode, record
from ddtree_ops.baseline.offline.config import draft_config
from ddtree_ops.baseline.offline.decode import Answer, Chooser, Decoder, Options, candidates
from ddtree_ops.baseline.offline.drafter import Context, Drafter, load_drafter
from ddtree_ops.baseline.offline.target import Target
from ddtree_ops.baseline.trees import definition

torch.set_num_threads(1)
VOCABULARY, BLOCK = 7, 4
CPU = torch.device("cpu")
PAIR = Path(__file__).resolve().parents[1] / "models" / "pytiny"
PROMPT = [1, 5, 2, 2, 6]
_KEPT = tempfile.TemporaryDirectory(prefix="offline-checks-")  # removed at the end
_FOLDER = Path(_KEPT.name)


def _tiny(kind, vocabulary=VOCABULARY, taps=(0, 2), seed=0):
    """A random target of three layers and a random drafter of two, written as folders once."""
    folder = _FOLDER / f"{kind}-{vocabulary}-{'-'.join(map(str, taps))}-{seed}"
    if not folder.exists():
        torch.manual_seed(seed)
        shape = {
            "vocab_size": vocabulary, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256,
            "initializer_range": 0.5, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": None,
        }  # fmt: skip
        config = {"qwen3": Qwen3Config, "llama": LlamaConfig}[kind](**shape)
        AutoModelForCausalLM.from_config(config).to(torch.float32).save_pretrained(folder / "target")
        draft = {
            "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "block_size": BLOCK, "vocab_size": vocabulary,
            "dflash_config": {"mask_token_id": 0, "target_layer_ids": list(taps)},
        }  # fmt: skip
        (folder / "draft").mkdir()
        (folder / "draft" / "config.json").write_text(json.dumps(draft), "utf-8")
        target = json.loads((folder / "target" / "config.json").read_text("utf-8"))
        weights = {
            name: torch.randn_like(value) * 0.4 if value.dim() > 1 else value
            for name, value in Drafter(draft_config(draft, target, "draft")).state_dict().items()
        }
        save_file(weights, folder / "draft" / "model.safetensors")
    return folder


def _decoder(folder, dtype=torch.float32):
    target = Target.load(folder / "target", CPU, dtype)
    return Decoder(target, load_drafter(folder / "draft", target.config, CPU, dtype))


def _decoded(decoder, options, prompt=PROMPT):
    answer = Answer()
    return list(decoder.decode("r", prompt, options, answer)), answer


def _greedy(decoder, prompt, tokens):
    """Plain greedy decoding by transformers itself: another loop, another cache, no mask of ours."""
    model = decoder.target.model
    out = model.generate(
        torch.tensor([prompt]), max_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=None,
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
    )  # fmt: skip
    return out[0, len(prompt) :].tolist()


def check_greedy_output_is_plain_greedy_decoding():
    """Token for token in float32, every mode and budget, Qwen3 and Llama targets: a wrong mask, position or kept row of
    the cache would change it."""
    for kind, taps in (("qwen3", (0, 2)), ("llama", (1,))):
        decoder = _decoder(_tiny(kind, taps=taps))
        wanted = _greedy(decoder, PROMPT, 40)
        for mode, budget in (("ar", 0), ("linear", 0), ("tree", 1), ("tree", 3), ("tree", 9), ("tree", 40)):
            found, answer = _decoded(decoder, Options(mode, budget, 40))
            assert answer.ids == wanted, (kind, mode, budget, answer.ids, wanted)
            assert answer.rounds == len(found)


def check_every_tree_is_the_top_of_the_product_distribution():
    """By brute force: all tuples of all depths, sorted by (score, ranks); the tree is the first B of them."""
    decoder = _decoder(_tiny("qwen3"))
    for budget in (1, 4, 17, 60):
        found, _ = _decoded(decoder, Options("tree", budget, 16))
        for one in found:
            limit = one.extra["depth_limit"]
            rows = [[definition.quantise(value) for value in row] for row in one.log_probs()][:limit]
            every = [
                (-sum(row[rank] for row, rank in zip(rows, ranks, strict=False)), ranks)
                for depth in range(1, limit + 1)
                for ranks in itertools.product(*(range(len(row)) for row in rows[:depth]))
            ]
            best = sorted(every)[:budget]
            tree = one.tree()
            mine = [tuple(tree.rank[node] for node in tree.path(index) if node) for index in range(1, len(tree))]
            assert sorted(mine) == sorted(ranks for _, ranks in best)
            assert len(mine) == min(budget, len(every))


def check_the_recorded_candidates_give_the_tree_again():
    """Candidates that no node uses are left out of the record; the heap over the rest must still give the same tree."""
    decoder = _decoder(_tiny("qwen3"))
    before, decode.KEPT_RANKS = decode.KEPT_RANKS, 1
    try:
        found, _ = _decoded(decoder, Options("tree", 12, 24))
    finally:
        decode.KEPT_RANKS = before
    assert min(len(row) for one in found for row in one.ids) < VOCABULARY
    assert [compare.rebuilt(one, 12) for one in found] == [""] * len(found)


def check_candidates_are_the_whole_softmax_in_canonical_order():
    """Equal logits are ordered by token id; log-probabilities are those of the whole vocabulary."""
    logits = torch.tensor([[1.0, 3.0, 3.0, -2.0, 3.0]])
    ids, log_probs = candidates(logits, 4)
    assert ids == [[1, 2, 4, 0]]
    total = math.log(sum(math.exp(value) for value in logits[0].tolist()))
    assert all(
        abs(value - (logits[0, token].item() - total)) < 1e-6 for token, value in zip(ids[0], log_probs[0], strict=True)
    )


def check_drafter_is_the_one_that_was_trained():
    """Against the training code's drafter, which shares no code with this one: same candidates, same scores."""
    import evaluate_pair
    import pytiny_model

    decoder = _decoder(PAIR)
    theirs = pytiny_model.load_target(PAIR / "target", dtype=torch.float32)
    drafter = pytiny_model.load_drafter(PAIR / "draft", dtype=torch.float32)
    prompt = list(range(40, 90))
    _, answer = _decoded(decoder, Options("tree", 8, 24), prompt)
    scores, order, _ = evaluate_pair.draft_table(theirs, drafter, prompt, answer.ids, 5)
    verdict, context = check.control(decoder, prompt, answer.ids)
    assert verdict["first"] is None, verdict
    at = range(len(answer.ids) - 1)
    ids, log_probs = decoder.draft([answer.ids[i] for i in at], [len(prompt) + i for i in at], context, 5)
    worst = max(abs(scores[i][d][r] / 2**32 - log_probs[i][d][r]) for i in at for d in range(15) for r in range(5))
    same = sum(order[i][d] == ids[i][d] for i in at for d in range(15)) / (15 * len(at))
    assert worst < 2e-3, worst
    assert same > 0.97, same


def check_incremental_context_is_the_whole_one():
    """Rounds extend the draft context by accepted rows alone: candidates must be those of one pass over everything."""
    decoder = _decoder(_tiny("qwen3"))
    found, answer = _decoded(decoder, Options("tree", 6, 30))
    _, context = check.control(decoder, PROMPT, answer.ids)
    for one in found:
        ((ids,), (log_probs,)) = decoder.draft([one.bonus_in], [one.start], context, len(one.ids[0]))
        assert ids == one.ids
        apart = torch.tensor(log_probs) - torch.tensor(one.log_probs())
        assert float(apart.abs().max()) < 1e-3


def check_walks_are_the_steps_of_real_decoding():
    """The exact walk of a budget, from one pass over the answer, against decoding with that budget."""
    decoder = _decoder(_tiny("qwen3"))
    budgets = (1, 3, 9, 40)
    steps = {}
    for mode, budget in (("linear", 0), *(("tree", budget) for budget in budgets)):
        _, answer = _decoded(decoder, Options(mode, budget, 40))
        steps["linear" if mode == "linear" else str(budget)] = answer.rounds
    _, context = check.control(decoder, PROMPT, answer.ids)
    walks = check.walks(decoder, PROMPT, answer.ids, context, budgets, 40)
    assert {name: one[0] for name, one in walks.items()} == steps, (walks, steps)
    assert all(one[1] == 39 for one in walks.values())


def check_a_wider_tree_never_reaches_less():
    """At every position: trees are nested, and one with all tuples reaches at least what the linear block reaches."""
    decoder = _decoder(_tiny("qwen3"))
    _, answer = _decoded(decoder, Options("ar", 0, 40))
    _, context = check.control(decoder, PROMPT, answer.ids)
    everything = VOCABULARY + VOCABULARY**2 + VOCABULARY**3
    budgets = (1, 2, 5, 12, 40, everything)
    reach = check._reach(decoder, PROMPT, answer.ids, context, budgets, 1000)
    for at in range(len(answer.ids) - 1):
        row = [reach[str(budget)][at] for budget in budgets]
        assert row == sorted(row)
        assert row[-1] >= reach["linear"][at]
        assert row[-1] == min(BLOCK - 1, len(answer.ids) - 1 - at)


def check_sampling_has_the_targets_law():
    """Three sampled tokens of a tree decoder against their exact probabilities (chi-square over 64 outcomes)."""
    decoder = _decoder(_tiny("qwen3", vocabulary=4, seed=3))
    heat, count = 1.3, 1200
    law = {}
    for first, second, third in itertools.product(range(4), repeat=3):
        logits = decoder.target.whole([*PROMPT_4, first, second])[len(PROMPT_4) - 1 :]
        rows = (logits.double() / heat).softmax(-1)
        law[first, second, third] = float(rows[0, first] * rows[1, second] * rows[2, third])
    assert abs(sum(law.values()) - 1) < 1e-9
    seen = collections.Counter()
    branches = 0
    for seed in range(count):
        found, answer = _decoded(decoder, Options("tree", 6, 3, heat, seed), PROMPT_4)
        seen[tuple(answer.ids)] += 1
        branches += sum(one.rank[node] > 0 for one in found for node in one.accepted[1:])
    assert branches > count // 20  # else the tree was not used
    chi = sum((seen[key] - count * share) ** 2 / (count * share) for key, share in law.items() if count * share >= 2)
    used = sum(count * share >= 2 for share in law.values())
    assert chi < used + 6 * math.sqrt(2 * used), (chi, used)


PROMPT_4 = [1, 3, 2, 2]


def check_seeds_repeat_and_differ():
    decoder = _decoder(_tiny("qwen3"))
    first, again, other = (_decoded(decoder, Options("tree", 6, 30, 1.0, seed))[1].ids for seed in (1, 1, 2))
    assert first == again
    assert first != other


def check_greedy_choice_ignores_the_seed():
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    assert Chooser(0.0, 1)(logits) == Chooser(0.0, 2)(logits) == [1]


def check_control_finds_a_wrong_token():
    """One token that is not the target's: its index, and how far apart the two are."""
    decoder = _decoder(_tiny("qwen3"))
    ids = _greedy(decoder, PROMPT, 12)
    ids[7] = (ids[7] + 1) % VOCABULARY
    found, _ = check.control(decoder, PROMPT, ids)
    assert found["first"] == 7
    assert found["distance"] > 0
    assert record.judge({**found, "distance": 0.4, "top": 20.0}, "bfloat16") == "differs"
    assert record.judge({**found, "distance": 0.2, "top": 20.0}, "bfloat16") == "near tie"
    assert record.judge({**found, "first": None}, "bfloat16") == "equal"


def check_answers_end_at_a_stop_token():
    """Also inside an accepted path: what was accepted behind it is dropped."""
    decoder = _decoder(_tiny("qwen3"))
    whole = _greedy(decoder, PROMPT, 40)
    for stop in set(whole[3:]):
        at = whole.index(stop)
        for mode in ("ar", "linear", "tree"):
            _, answer = _decoded(decoder, Options(mode, 9, 40, stop=frozenset({stop})))
            assert answer.ids == whole[: at + 1], (mode, stop)
            assert answer.finish == "stop"


def _recorded(*arguments, prompts=None):
    """Run the recorder's command line; returns status, stderr and the trace (None when there is none)."""
    file = _FOLDER / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in prompts or [{"id": "a", "input_ids": PROMPT}]), "utf-8")
    out = _FOLDER / "out.jsonl"
    out.unlink(missing_ok=True)
    complaints = io.StringIO()
    with contextlib.redirect_stderr(complaints):
        status = record.main([*map(str, arguments), "--prompts", str(file), "--out", str(out), "--device", "cpu"])
    return status, complaints.getvalue(), traces.load(out) if out.exists() else None


def check_recording_is_a_trace():
    folder = _tiny("llama")
    status, said, found = _recorded(
        "--target", folder / "target", "--drafter", folder / "draft", "--budgets", "9,3", "--max-tokens", 20,
        "--dtype", "float32", prompts=[{"id": "a", "input_ids": PROMPT, "regime": "x"}, {"input_ids": [3, 1]}],
    )  # fmt: skip
    assert status == 0, said
    assert (found.header.budget, found.header.block_size, found.header.dtype) == (9, BLOCK, "float32")
    one = found.requests[0]
    assert (one.name, one.announced.regime, one.whole) == ("a", "x", True)
    assert one.answer.ids == one.output[:20]
    assert one.answer.extra["control"]["verdict"] == "equal"
    assert set(one.answer.extra["walks"]) == {"linear", "3", "9"}
    assert one.answer.extra["walks"]["9"][0] == one.answer.rounds


def check_what_is_not_understood_is_said():
    """Every refusal is one line and exit status 2, before anything is decoded."""
    folder = _tiny("qwen3")
    models = ("--target", folder / "target", "--drafter", folder / "draft")
    config = json.loads((folder / "draft" / "config.json").read_text("utf-8"))
    cases = [
        (("--target", folder / "none", "--drafter", folder / "draft"), "No such file"),
        (("--target", folder / "target"), "needs --drafter"),
        ((*models, "--budgets", "0"), "at least one node"),
        ((*models, "--budgets", "x"), "not numbers"),
    ]
    changes = [
        ({"hidden_size": 64}, "hidden_size 64 is not the target's"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"layer_types": ["sliding_attention"] * 2}, "other kinds than full attention"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rotary positions of type 'yarn'"),
        ({"dflash_config": {"target_layer_ids": [0]}}, "no mask_token_id"),
        ({"dflash_config": {"mask_token_id": 0, "target_layer_ids": [9]}}, "do not fit a target of 3 layers"),
        ({"dflash_config": {"mask_token_id": 0, "selector_rank": 4}}, "another kind of drafter"),
        ({"num_hidden_layers": 1}, "weights of another kind of drafter"),
    ]
    for number, (change, what) in enumerate(changes):
        other = _FOLDER / f"changed-{number}"
        other.mkdir()
        (other / "config.json").write_text(json.dumps({**config, **change}), "utf-8")
        (other / "model.safetensors").write_bytes((folder / "draft" / "model.safetensors").read_bytes())
        cases.append((("--target", folder / "target", "--drafter", other), what))
    for arguments, what in cases:
        status, said, found = _recorded(*arguments)
        assert (status, found) == (2, None), (arguments, said)
        assert what in said.splitlines()[-1], (what, said)
    status, said, _ = _recorded(*models, prompts=[{"id": 1}])
    assert status == 2
    assert "prompts.jsonl:1: needs input_ids" in said


def check_a_wrong_answer_fails_the_recording():
    """The control's verdict is the exit status: a decoder that is wrong must not record a baseline quietly."""
    folder = _tiny("qwen3")
    kept = Target.keep
    Target.keep = lambda self, nodes: kept(self, [0] * len(nodes))  # the cache keeps the root in place of the path
    try:
        status, said, _ = _recorded(
            "--target", folder / "target", "--drafter", folder / "draft", "--budgets", 40, "--max-tokens", 40,
            "--dtype", "float32",
        )  # fmt: skip
    finally:
        Target.keep = kept
    assert status == 8, said
    assert "not the target's greedy ones" in said


def check_files_of_real_torch_are_read():
    """The reader without torch against torch.save itself: tensors, namespaces, nesting."""
    path = _FOLDER / "results.pt"
    ids = torch.arange(12, dtype=torch.long)[None, 2:9]
    torch.save({"responses": [{"dflash": SimpleNamespace(output_ids=ids, n=3)}], "x": torch.tensor([0.5, 1.5])}, path)
    found = torchfile.load(path)
    assert found["responses"][0]["dflash"].output_ids == [[2, 3, 4, 5, 6, 7, 8]]
    assert found["responses"][0]["dflash"].n == 3
    assert found["x"] == [0.5, 1.5]


def check_context_grows_by_what_it_is_given():
    decoder = _decoder(_tiny("qwen3"))
    decoder.target.prefill(PROMPT)
    context = Context(decoder.drafter)
    features = decoder.target.features()
    assert features.shape == (len(PROMPT), 64)
    with torch.inference_mode():
        context.extend(features[:2])
        context.extend(features[2:])
        whole = Context(decoder.drafter)
        whole.extend(features)
    assert context.length == whole.length == len(PROMPT)
    for (k, v), (other_k, other_v) in zip(context.layers, whole.layers, strict=True):
        assert torch.allclose(k, other_k, atol=1e-5)
        assert torch.allclose(v, other_v, atol=1e-5)


# -- the server's tracer --


def _step(rids, size=3, **params):
    """Arguments of one traced step: a chain of ``size`` nodes per request, all accepted."""
    bs = len(rids)
    chain = torch.arange(size).repeat(bs, 1)
    parent = (chain - 1).clamp(min=0)
    tree = SimpleNamespace(
        valid=torch.ones(bs, size, dtype=torch.bool), draft_token=chain + 5, parent=parent, depth=chain,
        rank=torch.where(chain > 0, 0, -1), score=-chain,
    )  # fmt: skip
    accepted = SimpleNamespace(
        accept_len=torch.full((bs,), size - 1), path=chain, out_tokens=chain + 6, bonus=torch.full((bs,), size + 5)
    )
    logits = torch.zeros(bs * size, 20)
    logits[:, 7], logits[:, 3] = 2.0, 1.5
    tail = SimpleNamespace(
        shape=SimpleNamespace(host=Shape(size, 2)), budgets=torch.full((bs,), 9), end_lens=torch.full((bs,), 1 << 40)
    )
    sampling = SimpleNamespace(temperature=1.0, top_k=1, **params)
    reqs = [SimpleNamespace(rid=rid, origin_input_ids=[1, 2], sampling_params=sampling) for rid in rids]
    ids = torch.arange(5, 5 + size - 1)[None, :, None].repeat(bs, 1, 1) + 1
    target = torch.where(chain < size - 1, chain + 6, size + 5)
    return (reqs, torch.full((bs,), 2), ids, torch.full(ids.shape, -0.5), tree, target, accepted, logits, tail)


def _tracer(**bounds):
    folder = Path(tempfile.mkdtemp(dir=_FOLDER))
    return tracing.Tracer(folder / "t", TraceHeader("m", "d", "sglang", "0", 3, 2, dtype="bfloat16"), **bounds)


def check_tracer_writes_what_a_comparison_needs():
    """Prompt, shape of the tree, gap and size of the target's logits; the file loads, and its path can be walked."""
    tracer = _tracer()
    assert tracer.record(*_step(["a", "b"], presence_penalty=0.5))
    found = traces.load(tracer.path)
    assert [one.req for one in found.requests] == ["a", "b"]
    assert all(one.whole for one in found.requests)
    one = found.requests[0].rounds[0]
    assert (one.extra["budget"], one.extra["depth_limit"], one.extra["mode"]) == (2, 2, "tree")
    assert (one.extra["gap"], one.extra["top"]) == ([0.5] * 3, [2.0] * 3)
    assert (one.extra["adjusted"], one.extra["temperature"]) == (True, 0.0)
    assert compare.walked(one) == ""


def check_tracer_is_bounded_by_rounds():
    tracer = _tracer(rounds=3)
    assert tracer.record(*_step(["a", "b"]))
    assert not tracer.record(*_step(["a", "b"]))
    assert len(list(traces.load(tracer.path).rounds)) == 3


def check_tracer_takes_every_nth_request_whole():
    tracer = _tracer(every=2)
    for _ in range(3):
        tracer.record(*_step(["a", "b", "c"]))
    found = traces.load(tracer.path)
    assert {one.req: len(one.rounds) for one in found.requests} == {"a": 3, "c": 3}


def check_tracer_rotates_and_both_files_load():
    """A full file becomes FILE.1; prompts of requests that go on are written again: else nobody knew their rounds."""
    tracer = _tracer(most_bytes=4000)
    for _ in range(12):
        assert tracer.record(*_step(["a"]))
    older = tracer.path.with_name("t.1")
    assert tracer.path.stat().st_size <= 4000 >= older.stat().st_size
    for path in (tracer.path, older):
        assert all(one.announced for one in traces.load(path).requests)
    assert sorted(path.name for path in tracer.path.parent.iterdir()) == ["t", "t.1"]


def check_tracer_gives_up_without_ending_the_server():
    tracer = _tracer()
    tracer.path.unlink()
    tracer.path.mkdir()
    assert not tracer.record(*_step(["a"]))


def main():
    outcomes = {}
    for name, function in list(globals().items()):
        if name.startswith("check_"):
            try:
                function()
                outcomes[name] = None
            except Exception:
                outcomes[name] = traceback.format_exc()
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
