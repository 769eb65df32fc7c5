"""A simulated engine and clients who send the next request when one is answered, as a benchmark does: what is known of
it beforehand is its tokens/s at every K.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from app.drafts.controller import Controller
from app.drafts.estimate import Estimator
from plugin.drafts.steps import StepStats

MAX_K = 7
Duration = Callable[[int, int], float]
"""Seconds of a decode step, by K and the number of requests."""


@dataclass(frozen=True)
class Traffic:
    """`turnaround_s`: from an answer's end until the engine has its client's next request; `admission_s`: what a
    request adds to the step that admits it; `rates[i]`: chance of acceptance at position i, given all before.
    `crowded`: longer by this factor is a step in three of those after an admission, when clients and gateway take the
    processor.
    """

    clients: int
    tokens: int
    duration: Duration
    turnaround_s: float = 0.0
    admission_s: float = 0.0
    max_num_seqs: int = 64
    rates: Sequence[float] = (0.9,) * MAX_K
    crowded: float = 1.0


@dataclass
class Request:
    left: int
    drafted: int = 0


@dataclass
class Loop:
    """Serves until `requests` were answered; `controller`, where there is one, says which K the steps have."""

    traffic: Traffic
    k: int
    requests: int
    controller: Controller | None = None
    estimator: Estimator | None = None
    seed: int = 0
    now: float = 0.0
    tokens: int = 0
    running: list[Request] = field(default_factory=list)

    def run(self) -> float:
        """Tokens/s."""
        traffic, chance = self.traffic, random.Random(self.seed)
        arrivals = [0.0] * traffic.clients
        answered, last_end, last = 0, 0.0, (-1, False)
        since_admission = 99
        while answered < self.requests:
            if not self.running and arrivals[0] > self.now:
                self.now = arrivals[0]
            began, k = self.now, self.k if self.controller is None else self.controller.wanted
            new = 0
            while arrivals and arrivals[0] <= self.now and len(self.running) < traffic.max_num_seqs:
                heapq.heappop(arrivals)
                self.running.append(Request(max(2, round(chance.gauss(traffic.tokens, traffic.tokens / 5)))))
                new += 1
            since_admission = 0 if new else since_admission + 1
            rows = len(self.running)
            lasted = traffic.duration(k, rows) * max(0.5, chance.gauss(1, 0.05)) + new * traffic.admission_s
            if since_admission <= 1 and chance.random() < 1 / 3:
                lasted *= traffic.crowded
            self.now += lasted
            step, tokens, drafts, steady = [], 0, {}, not new
            for request in self.running:
                steady &= request.drafted == k
                accepted = 0
                while accepted < request.drafted and chance.random() < traffic.rates[accepted]:
                    accepted += 1
                if request.drafted:
                    count, hits = drafts.get(request.drafted, (0, (0,) * request.drafted))
                    hits = tuple(n + (i < accepted) for i, n in enumerate(hits))
                    drafts[request.drafted] = count + 1, hits
                given = min(1 + accepted, request.left)
                tokens, request.left, request.drafted = tokens + given, request.left - given, k
                if request.left:
                    step.append(request)
                else:
                    answered += 1
                    heapq.heappush(arrivals, self.now + traffic.turnaround_s * max(0.0, chance.gauss(1, 0.3)))
            self.running, self.tokens = step, self.tokens + tokens
            said = StepStats(
                k=k,
                num_requests=rows,
                seconds=self.now - last_end if steady and last == (k, True) else None,
                drafts=drafts,
                wall=self.now - last_end,
                idle=began - last_end,
                tokens=tokens,
            )
            last, last_end = (k, steady and bool(self.running)), self.now
            if self.estimator is not None:
                self.estimator.add(said)
            if self.controller is not None:
                self.controller.step(said)
        return self.tokens / self.now


def measured(traffic: Traffic, k: int, requests: int = 400) -> float:
    """Tokens/s at K = k over those without a draft, each served alone."""
    return Loop(traffic, k, requests, seed=1).run() / Loop(traffic, 0, requests, seed=2).run()


def estimated(traffic: Traffic, k: int, requests: int = 800) -> Estimator:
    """What a server at K = k knows after so many requests, a hundredth of its steps at another K."""
    estimator = Estimator(range(MAX_K + 1), lambda: loop.now)
    controller = Controller(estimator, k, share=0.01)
    loop = Loop(traffic, k, requests, controller, estimator, seed=3)
    loop.run()
    return estimator
