"""What every section of the settings is made of."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from memwatch_web.webhooks import Endpoint, endpoint_of
from memwatchd.settings.values import Refused, duration_of

Duration = Annotated[timedelta, BeforeValidator(duration_of)]


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


class Section(BaseModel):
    """A table of the configuration file: only what is declared, and not to be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


def checked_endpoint(value: object) -> Endpoint:
    if not isinstance(value, str):
        raise Refused
    try:
        return endpoint_of(value)
    except ValueError as error:
        raise Refused(str(error)) from None


def checked_url(value: object) -> str:
    checked_endpoint(value)
    return str(value).rstrip("/")
