"""Own prices, as they are written in the YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Self

from pydantic import Field, model_validator

from .declaring import Group
from .values import Day, Multiplier, Usd


class PriceAbove(Group):
    """USD per million tokens of a turn whose prompt has more than `tokens` tokens."""

    tokens: Annotated[int, Field(strict=True, ge=1, le=100_000_000)]
    input: Usd
    cached: Usd | None = None
    output: Usd


class ModelPrice(Group):
    """A user's own price of one model, in USD per million tokens.

    Either `input` and `output`, or `price_as` (the model whose published price applies), or only a
    multiplier of the published price. `cached` None means that cached tokens cost the input price.
    It holds from `from_` (inclusive) to `to` (exclusive), both UTC; None is without limit.
    """

    input: Usd | None = None
    cached: Usd | None = None
    output: Usd | None = None
    above: PriceAbove | None = None
    price_as: Annotated[str, Field(min_length=1)] | None = None
    multiplier: Multiplier = Decimal(1)
    from_: Day | None = None
    to: Day | None = None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        own = self.model_fields_set & {"input", "cached", "output", "above"}
        if own and self.price_as is not None:
            raise ValueError(f"price-as and {min(own)} exclude each other: keep one of them")
        if own and (self.input is None or self.output is None):
            raise ValueError("needs both input and output")
        if not own and self.price_as is None and "multiplier" not in self.model_fields_set:
            raise ValueError("needs input and output, or price-as, or multiplier")
        if self.from_ is not None and self.to is not None and self.from_ >= self.to:
            raise ValueError("from must be before to, the first day that is out")
        return self


class Pricing(Group):
    """Own prices; only the YAML file can hold them."""

    multiplier: Multiplier = Decimal(1)
    models: Mapping[str, ModelPrice] = Field(default_factory=dict)
