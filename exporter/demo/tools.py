"""Tools as a conversation calls them: what a finished call of each looks like."""

from __future__ import annotations

from itertools import accumulate
from random import Random
from typing import Any

from .records import Record, iso
from .text import code, fill, prose, quoted

_TOOLS = {
    "read_file": ("ReadFile", 30),
    "run_shell_command": ("Shell", 28),
    "replace": ("Edit", 18),
    "grep_search": ("SearchText", 11),
    "glob": ("FindFiles", 7),
    "google_web_search": ("GoogleSearch", 3),
    "mcp_github_get_issue": ("get_issue (github MCP Server)", 3),
}
_NAMES = list(_TOOLS)
_ODDS = list(accumulate(weight for _, weight in _TOOLS.values()))

_AGENT = "codebase_investigator"


class Tools:
    """The tools of one session; `rng` decides, `output` is their mean output in bytes.

    Times are in ms since the epoch. A subagent's calls carry the session and the turn in their ids.
    """

    def __init__(
        self, rng: Random, root: str, output: float, session: str, jsonl: bool, subagent: bool
    ) -> None:
        self._rng, self._root, self._output = rng, root, output
        self._session, self._jsonl, self._subagent = session, jsonl, subagent

    def calls(self, turn: int, now: int) -> list[Record]:
        """One to three finished calls of one message; some fail, a few are refused."""
        rng, calls = self._rng, list[Record]()
        for index in range(rng.choice((1, 1, 1, 1, 2, 3))):
            name = rng.choices(_NAMES, cum_weights=_ODDS)[0]
            call = f"{name}_{now}_{index}"
            if self._jsonl:
                call = f"{self._session}#{turn}-{index}" if self._subagent else f"{name}__{call}"
            args, about, told, shown = self._work(name)
            chances = (91, 8, 0 if self._subagent else 1)
            status = rng.choices(("success", "error", "cancelled"), chances)[0]
            if status == "error":
                shown = "File not found."
                about = "Reads and returns the content of one file, in parts if it is long."
            calls.append(
                self._call(call, name, args, told, status, now)
                | ({} if status == "cancelled" else {"resultDisplay": shown})
                | {"description": about, "displayName": _TOOLS[name][0]}
                | {"renderOutputAsMarkdown": name != "run_shell_command"}
            )
        return calls

    def report(self, turn: int, now: int) -> Record:
        """The call by which a subagent ends."""
        call, told = f"{self._session}#{turn}-0", "Output submitted and task completed."
        args = {"report": prose().quote(self._rng, 900)}
        done = self._call(call, "complete_task", args, told, "success", now)
        shown = {"resultDisplay": told, "description": told, "displayName": "Complete Task"}
        return done | shown | {"renderOutputAsMarkdown": True}

    def delegation(self, agent: str, task: str, now: int) -> Record:
        """The call that gave a task to the subagent with the id `agent`."""
        report = prose().quote(self._rng, 1_200)
        if self._jsonl:
            tool, args = "invoke_agent", {"agent_name": _AGENT, "prompt": task}
            call, identity = f"{tool}__{tool}_{now}_0", {"agentId": agent}
            label = "Invoke Subagent"
        else:
            tool, args = _AGENT, {"objective": task}
            call, identity = f"{tool}_{now}_0", {}
            label = "Codebase Investigator Agent"
        shown = {"isSubagentProgress": True, "agentName": _AGENT, "recentActivity": []}
        shown |= {"state": "completed", "result": report, "terminateReason": "GOAL"}
        about = {"description": f"Delegating to agent '{_AGENT}'", "displayName": label}
        done = self._call(call, tool, args, report, "success", now) | identity
        return done | {"resultDisplay": shown} | about | {"renderOutputAsMarkdown": True}

    def _work(self, name: str) -> tuple[Record, str, Any, Any]:
        """The arguments of a tool, in short, what it tells the model and what a person sees."""
        rng = self._rng
        path = fill(rng, "src/{n}/{v}_{m}.py")
        file = f"{self._root}/{path}"
        text = code().cut(rng, min(300_000.0, rng.lognormvariate(-0.72, 1.2) * self._output))
        shown = quoted(text)
        match name:
            case "read_file":
                return {"file_path": file}, path, shown, ""
            case "run_shell_command":
                command = fill(rng, "pytest -q tests/test_{n}.py -k {v} --maxfail {j}")
                told = b"Output: %b\\nProcess Group PGID: %d" % (text, rng.randrange(2_000, 90_000))
                if self._jsonl:
                    told = b"<untrusted_context>\\n%b\\n</untrusted_context>" % told
                asked = {"command": command, "description": "Run the tests"}
                return asked, command, quoted(told), shown
            case "replace":
                new = code().quote(rng, len(text) / 20)
                args: Record = {"file_path": file, "instruction": fill(rng, "Guard the {n}")}
                diff = {"fileDiff": new, "fileName": path.rpartition("/")[2], "filePath": file}
                diff |= {"originalContent": shown, "newContent": shown}
                args |= {"old_string": "pass", "new_string": new}
                return args, path, f"Successfully modified file: {file}", diff
            case _:
                query = fill(rng, "{v} {n} with {m}")
                return {"query": query}, query, shown, fill(rng, "Found {j} results.")

    def _call(self, call: str, name: str, args: Record, told: Any, status: str, now: int) -> Record:
        """The part that finished calls of all tools have in common."""
        response: Record = {"output": told}
        if status == "error":
            response = {"error": f"File not found: {self._root}/src"}
        elif status == "cancelled":
            response = {"error": "[Operation Cancelled] Reason: User denied execution."}
        result = {"functionResponse": {"id": call, "name": name, "response": response}}
        done = {"result": [result], "status": status, "timestamp": iso(now)}
        return {"id": call, "name": name, "args": args} | done
