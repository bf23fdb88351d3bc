"""The verbs ``facts`` and ``read_files``: one look at the host, which writes nothing at all on it.

Independent questions run side by side in a few threads; what is slow (nvidia-smi, docker) starts first and is
awaited last. The shape of the answer is ``ddtree_ops.model.Facts``.
"""

from __future__ import annotations

import base64
import os
import stat
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Dict, Iterable, List, Optional, Tuple

from . import containers, content, copies, hardware, hashing, interpreters, models, probe, resolve, search, servers
from . import state as state_folder
from . import units as unit_files
from .look import Fact, Look, is_within, user_path
from .protocol import Emit, verb

SCHEMA_VERSION = 1
_STEPS = ("processes and units", "places", "interpreters", "imports", "copies", "machine")
MOST_INTERPRETERS = 12


@verb("facts")
def collect(params: Dict[str, Any], emit: Emit) -> Dict[str, Any]:
    """Everything of model.Facts.

    ``params``: environment, checkouts, unit, our_unit, working_directory, service_environment, port, target_model,
    drafter, state_root, anchors, extra_roots, roots (instead of the usual ones), timeout_s; all may be absent.
    """
    look = Look(params)
    with ThreadPoolExecutor(8) as pool:
        return _Collection(look, pool, emit).run()


class _Collection:
    """One run of ``facts``, step by step; each step fills what the next ones need."""

    def __init__(self, look: Look, pool: ThreadPoolExecutor, emit: Emit) -> None:
        self.look = look
        self.pool = pool
        self.emit = emit
        self.running: List[servers.Running] = []
        self.ports: List[Fact] = []
        self.units: List[Fact] = []
        self.candidates: List[interpreters.Candidate] = []
        self.packages_found: Tuple[str, ...] = ()
        self.resolutions: List[Fact] = []
        self.scanned: List[copies.Scanned] = []

    def run(self) -> Dict[str, Any]:
        """All steps, and the answer."""
        look, pool = self.look, self.pool
        slow: Dict[str, "Future[Any]"] = {
            "gpus": pool.submit(hardware.gpus, look),
            "containers": pool.submit(containers.find, look),
            "host": pool.submit(hardware.host, look),
        }
        for number, step in enumerate(
            (self._processes, self._places, self._interpreters, self._imports, self._copies), 0
        ):
            self.emit(
                {"kind": "progress", "step": "facts", "done": number, "total": len(_STEPS), "text": _STEPS[number]}
            )
            step()
        self.emit(
            {"kind": "progress", "step": "facts", "done": len(_STEPS) - 1, "total": len(_STEPS), "text": _STEPS[-1]}
        )
        return self._answer(slow)

    def _processes(self) -> None:
        self.running, self.ports = servers.find(self.look)
        self.units = unit_files.find(self.look)

    def _places(self) -> None:
        homes = [] if "roots" in self.look.params else search.homes()
        environments: List[str] = []
        for home in homes:
            environments += interpreters.well_known_environments(home)
        found = search.search(self.look, homes)
        environments += found.environments
        self.packages_found = found.package_folders
        self.candidates = interpreters.collect_candidates(self.look, self._named(), environments)
        if len(self.candidates) > MOST_INTERPRETERS:
            self.look.warn("%d environments found; only %d are asked" % (len(self.candidates), MOST_INTERPRETERS))
            self.candidates = self.candidates[:MOST_INTERPRETERS]

    def _named(self) -> Iterable[Tuple[str, str]]:
        named = self.look.text("environment")
        if named:
            path = interpreters.executable_of(named)
            self.look.looked(user_path(named))
            if path:
                yield path, "inventory"
            else:
                self.look.warn("environment %s of the inventory: there is no interpreter" % named)
        for unit in self.units:
            path = interpreters.python_in(unit["exec_start"])
            if path:
                yield path, "unit:%s" % unit["name"]
        for one in self.running:
            if one.fact["interpreter"]:
                yield str(one.fact["interpreter"]), "process:%d" % one.fact["pid"]
        takeover = self.look.text("unit")
        for one in self.running if takeover else ():
            meant = one.fact["unit"] in (takeover, takeover + ".service")
            meant = meant or (takeover.isdigit() and int(takeover) in one.fact["processes"])
            if meant and one.fact["interpreter"]:
                yield str(one.fact["interpreter"]), "takeover"

    def _interpreters(self) -> None:
        list(self.pool.map(lambda one: interpreters.interrogate(self.look, one), self.candidates))

    def _imports(self) -> None:
        questions: List[resolve.Question] = []
        service = resolve.service_context(self.look)
        for candidate in self.candidates:
            if not candidate.answer.get("version"):
                continue
            self.resolutions.append(resolve.isolated(candidate))
            if candidate.has_sglang or "inventory" in candidate.sources:
                questions += [(candidate, service), (candidate, resolve.NEUTRAL)]
                for folder in self._launch_folders():
                    questions.append((candidate, service._replace(name="checkout-cwd", cwd=folder)))
        questions += self._server_questions()
        self.resolutions += self.pool.map(lambda question: resolve.answer(self.look, question), questions)

    def _launch_folders(self) -> List[str]:
        """Where somebody could start a server so that an inventory's checkout wins: beside its package."""
        found = []
        for named in self.look.texts("checkouts")[:2]:
            found += [os.path.dirname(folder) for folder in search.package_folders(user_path(named))[:1]]
        return found

    def _server_questions(self) -> Iterable[resolve.Question]:
        for one in self.running:
            candidate = (
                interpreters.pick(self.candidates, str(one.fact["interpreter"])) if one.fact["interpreter"] else None
            )
            if candidate is not None and candidate.answer.get("version") and one.fact["cwd"]:
                yield candidate, probe.Context("server", str(one.fact["cwd"]), one.python_environment, False, one.first)
        named = self.look.text("unit")
        unit = unit_files.pick(self.units, named) if named and not named.isdigit() else None
        if unit is not None and not any(one.fact["unit"] == unit["name"] for one in self.running):
            path = interpreters.python_in(unit["exec_start"])
            candidate = interpreters.pick(self.candidates, path) if path else None
            if candidate is not None and candidate.answer.get("version"):
                pairs = tuple(sorted(unit["environment"].items()))
                yield candidate, probe.Context("server", str(unit["working_directory"] or "/"), pairs)

    def _copies(self) -> None:
        look = self.look
        groups: List[Iterable[copies.Place]] = [copies.installed(one) for one in self.candidates]
        groups.append(copies.standing(look, self.packages_found))
        groups.append(copies.shadow(folder) for folder in resolve.places(self.resolutions) if os.path.isdir(folder))
        groups.append(copies.shadow(folder) for folder in self._shadow_candidates())
        hashes = content.Hashes(look)
        places = copies.merge(look, groups)
        self.scanned = list(self.pool.map(lambda place: copies.scan(look, hashes, place), places))
        copies.name_apart(self.scanned)

    def _shadow_candidates(self) -> Iterable[str]:
        """``sglang`` folders on any PYTHONPATH that a service, a unit or a server has."""
        settings = [dict(self.look.params.get("service_environment") or {})]
        settings += [unit["environment"] for unit in self.units] + [one.fact["environment"] for one in self.running]
        settings.append(dict(os.environ))
        for variables in settings:
            for part in str(variables.get("PYTHONPATH") or "").split(os.pathsep):
                folder = os.path.join(part, "sglang")
                if os.path.isabs(part) and os.path.isdir(folder):
                    yield folder

    def _answer(self, slow: Dict[str, "Future[Any]"]) -> Dict[str, Any]:
        look = self.look
        described = [interpreters.describe(one) for one in self.candidates]
        state = state_folder.describe(look)
        gpus, gpu_error = slow["gpus"].result()
        total, available = hardware.memory()
        prefixes = [str(one["prefix"]) for one in described if one["sources"][0][:6] != "search"]
        roles = (("target", look.text("target_model")), ("draft", look.text("drafter")))
        answer: Dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "host": slow["host"].result(),
            "tools": hardware.tools(),
            "interpreters": described,
            "copies": [one.fact for one in self.scanned],
            "resolutions": self.resolutions,
            "divergences": self._divergences(),
            "servers": [one.fact for one in self.running],
            "units": self.units,
            "ports": self.ports,
            "containers": slow["containers"].result(),
            "gpus": gpus,
            "gpu_error": gpu_error,
            "memory_total": total,
            "memory_available": available,
            "disks": [hardware.disk(path) for path in state_folder.disks(str(state["state_root"]), prefixes)],
            "models": [models.describe(look, role, named) for role, named in roles if named],
        }
        answer.update(state)
        answer.update(searched=look.searched, warnings=look.warnings, duration=time.monotonic() - look.started)
        return answer

    def _divergences(self) -> List[Fact]:
        """Every copy with source against the one that a server or the service imports; each pair when none does."""
        whole = [one for one in self.scanned if one.sources]
        live = self._live(whole)
        if live is not None:
            return [copies.divergence(live, other) for other in whole if other is not live]
        pairs = [(one, other) for number, one in enumerate(whole[:4]) for other in whole[number + 1 : 4]]
        return [copies.divergence(one, other) for one, other in pairs]

    def _live(self, whole: List[copies.Scanned]) -> Optional[copies.Scanned]:
        """The copy that the named environment imports as the service; without one, that of the only server."""
        named = [one.path for one in self.candidates if "inventory" in one.sources]
        wanted = [("service", path) for path in named] or [("server", ""), ("service", "")]
        for context, interpreter in wanted:
            folders = {
                os.path.realpath(str(one["package_dir"]))
                for one in self.resolutions
                if one["context"] == context and one["origin"] and interpreter in ("", one["interpreter"])
            }
            matching = [one for one in whole if one.fact["realpath"] in folders]
            if len(folders) == 1 and matching:
                return matching[0]
        return None


@verb("read_files")
def read_files(params: Dict[str, Any], emit: Emit) -> Dict[str, Any]:
    """The bytes of ``paths`` (relative to ``base``, or absolute): ``{"files": [{path, sha256, mode, size, content}]}``.

    ``content`` is base64. A file that cannot be read has ``error`` instead; that one is missing is an answer.
    """
    base = str(params.get("base") or "/")
    return {"files": [_read_one(base, str(path)) for path in params.get("paths") or ()]}


def _read_one(base: str, path: str) -> Fact:
    full = os.path.join(base, path)
    if not os.path.isabs(path) and not is_within(os.path.normpath(full), os.path.normpath(base)):
        return {"path": path, "error": "outside of %s" % base}
    try:
        with open(full, "rb") as handle:
            status = os.fstat(handle.fileno())
            if not stat.S_ISREG(status.st_mode):
                return {"path": path, "error": "not a regular file"}
            data = handle.read()
    except FileNotFoundError:
        return {"path": path, "error": "absent"}
    except (OSError, ValueError) as error:
        return {"path": path, "error": getattr(error, "strerror", None) or str(error)}
    return {
        "path": path,
        "sha256": hashing.of_bytes(data),
        "mode": stat.S_IMODE(status.st_mode),
        "size": len(data),
        "content": base64.b64encode(data).decode("ascii"),
    }
