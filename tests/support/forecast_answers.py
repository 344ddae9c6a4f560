"""What a forecasting process may do in place of an answer. It imports the module, so it loads no library for numbers."""

import os
import signal
import time
from typing import Any

from agent.forecasting.messages import ForecastRequest, ForecastResponse
from agent.forecasting.worker import answer_request


def exits(request: ForecastRequest) -> ForecastResponse:
    os._exit(7)


def crashes(request: ForecastRequest) -> ForecastResponse:
    os.kill(os.getpid(), signal.SIGSEGV)
    return hangs(request)


def needs_memory(request: ForecastRequest) -> ForecastResponse:
    bytearray(600 * 2**20)
    return hangs(request)


def hangs(request: ForecastRequest) -> ForecastResponse:
    time.sleep(86_400)
    raise AssertionError


def prints(request: ForecastRequest) -> ForecastResponse:
    print("[library] chatter", flush=True)
    os.write(1, b"more\n")
    return answer_request(request)


def fails_for_bad(request: ForecastRequest) -> ForecastResponse:
    if request.tier == "bad":
        raise ZeroDivisionError("division by zero")
    return answer_request(request)


def fails_after_the_first(request: ForecastRequest) -> ForecastResponse:
    """Fail in the tier's forecaster, with the number of forecasters that were begun."""
    from agent.forecasting.tier_forecast import TierForecast

    if not hasattr(TierForecast, "begun"):
        _count_forecasters(TierForecast)
    return answer_request(request)


def _count_forecasters(forecaster: Any) -> None:
    begin, respond, answered = forecaster.__init__, forecaster.respond, []
    forecaster.begun = 0

    def counted(self: Any, *given: Any) -> None:
        forecaster.begun += 1
        begin(self, *given)

    def failing(self: Any, request: ForecastRequest) -> Any:
        answered.append(request)
        if len(answered) > 1:
            raise ValueError(f"begun {forecaster.begun} times")
        return respond(self, request)

    forecaster.__init__, forecaster.respond = counted, failing
