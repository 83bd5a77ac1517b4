"""GET and POST /fit: the form, and the answer with the plan in the map of the machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import PurePosixPath
from types import MappingProxyType
from urllib.parse import parse_qsl, urlencode

from msgspec import Struct
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from memwatch.core.model import Absent, Thresholds
from memwatch.core.printable import printable
from memwatch.core.snapshot import Snapshot
from memwatch.planning.answer import FitAnswer, answer_request, describe_rate, greatest_sentence, report_sentence
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.diffusion import Pipeline
from memwatch.planning.engines import ALL, ENGINES, Launches
from memwatch.planning.fit import CPU, Fit, FitVerdict, exceeds_totals
from memwatch.planning.huggingface import parse_config
from memwatch.planning.need import PARTS, compute_need_here
from memwatch.planning.number_formats import NAMES
from memwatch.planning.parameters import write_parameters
from memwatch.planning.request import (
    DESCRIBED,
    DETAILS,
    PARAMETERS,
    PIPELINE,
    USE,
    FitRequest,
    Use,
    choose_context,
    write_shape,
)
from memwatch.planning.safetensors import parse_object
from memwatch.planning.training import OPTIMIZER_BYTES
from memwatch.planning.transformer import Transformer
from memwatch.reporting.render import words
from memwatch.reporting.render.memory_map import build_maps
from memwatch_web.asgi.problems import describe_error, refuse_repeated
from memwatch_web.pages.landscape_page import PageLandscape, Scene, draw_page
from memwatch_web.pages.planned import Planned, describe_places, plan_pools, spare_of
from memwatch_web.pages.renderer import PageServices

MAX_FIELDS = 40
# With one of these, a plan has its bytes in another way than by the shape of a transformer.
SIZE_FIELDS = ("bytes", "weights_bytes", "denoiser")
# More devices than these share a line with those of the same answer.
MAX_LINES = 4
FIT_QUERY = "memwatch_web.api.fit_query"
IMPORT_SECONDS = 0.2
# The required sizes of a shape, and their words in the form.
SHAPE_FIELDS = {
    "hidden_size": "hidden size",
    "intermediate_size": "intermediate size",
    "n_layers": "layers",
    "n_heads": "heads",
    "n_kv_heads": "KV heads",
    "vocab_size": "vocabulary size",
}
# The shapes of published checkpoints, from their config.json.
EXAMPLES = (
    ("Llama 3.2 1B", Transformer(2048, 8192, 16, 128256, 32, 8, head_dim=64, tied_embeddings=True)),
    ("Mistral 7B v0.3", Transformer(4096, 14336, 32, 32768, 32, 8)),
    ("Llama 3 8B", Transformer(4096, 14336, 32, 128256, 32, 8)),
    ("Qwen3 30B-A3B", Transformer(2048, 768, 48, 151936, 32, 4, head_dim=128, n_experts=128, qk_norm=True)),
    ("Llama 3 70B", Transformer(8192, 28672, 80, 128256, 64, 8)),
)


class Verdicts(Struct, frozen=True):
    """Devices with the same answer, for the same reason, and a name of theirs. `fits`: yes, no or unknown."""

    devices: tuple[str, ...]
    name: str
    fits: str
    words: str
    reason: str

    @property
    def title(self) -> str:
        """Return the name with the number of devices that have it."""
        return self.name if len(self.devices) == 1 else f"{len(self.devices)} × {self.name}"

    @property
    def ids(self) -> str:
        """Return the devices, as a range where they are one."""
        start = self.devices[0].rstrip("0123456789")
        first = self.devices[0].removeprefix(start)
        if len(self.devices) > 2 and first.isdecimal():
            found = tuple(f"{start}{int(first) + place}" for place in range(len(self.devices)))
            if found == self.devices:
                return f"{self.devices[0]} to {self.devices[-1]}"
        return ", ".join(self.devices)


class FitForm(Struct, frozen=True):
    """The query and its answer or problem. `change`: the query of the cheapest change that fits. `landscape`: the
    machine with the plan in it, and `sentence` the same in words."""

    fields: Mapping[str, str]
    answered: FitAnswer | None = None
    problem: str = ""
    landscape: PageLandscape | None = None
    sentence: str = ""
    facts: tuple[str, ...] = ()

    # Without a type: the same for all.
    optimizers = tuple(OPTIMIZER_BYTES)
    parameters = PARAMETERS
    shape = SHAPE_FIELDS
    engines = {name: engine.title for name, engine in ENGINES.items()}

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Return the formats to choose from, with that of a config if it is a valid one."""
        given = self.fields.get("dtype", "")
        return NAMES if self.answered is None or not given or given in NAMES else (*NAMES, given)

    def plain(self, name: str) -> object:
        """Return the default of a parameter for a model that is described by numbers."""
        return DESCRIBED.get(name, PARAMETERS[name].default)

    @property
    def given_shape(self) -> list[str]:
        """Return the sizes of a shape that are given."""
        return [name for name in SHAPE_FIELDS if name in self.fields]

    @property
    def examples(self) -> tuple[tuple[str, str], ...]:
        return EXAMPLE_QUERIES

    @property
    def details(self) -> dict[str, str]:
        """Return the fields of the shape that are shown only if given."""
        return {name: self.fields[name] for name in DETAILS if name in self.fields}

    @property
    def hidden(self) -> list[str]:
        """Return the given fields that the form keeps without showing them."""
        kept = ("weights_bytes", "weight_bits", "weight_scope", "unknown", "max_context", *PIPELINE)
        return [name for name in kept if self.answered and name in self.fields]

    @property
    def name(self) -> str:
        """Return the name of the model, without the folders of a path, or the size."""
        given = self.fields.get("bytes") or self.fields.get("model", "")
        return (PurePosixPath(given).name if given.startswith("/") else given) or "This model"

    @property
    def headline(self) -> str:
        return build_headline(self.name, self.answered.fit) if self.answered else ""

    @property
    def verdicts(self) -> tuple[Verdicts, ...]:
        return tuple(group_verdicts(self.answered.fit)) if self.answered else ()

    @property
    def parts(self) -> list[tuple[str, int]]:
        need = self.answered.need.parts if self.answered else {}
        return [(PARTS[name], size) for name, size in need.items() if size]

    @property
    def greatest(self) -> str:
        found = self.answered.greatest if self.answered else None
        return greatest_sentence(found) if found else ""

    @property
    def rate(self) -> str:
        found = self.answered.decode_rate if self.answered else None
        return describe_rate(found) if found else ""

    @property
    def reports(self) -> list[str]:
        return [report_sentence(one) for one in self.answered.engines] if self.answered else []

    @property
    def launches(self) -> Launches:
        return self.answered.launches if self.answered else Launches()

    @property
    def change(self) -> str:
        change = self.answered.change if self.answered else None
        return urlencode(changed_fields(self.fields, change.use)) if change else ""


def build_headline(name: str, found: Fit) -> str:
    """Return the answer in one line."""
    best = next((one for one in found.verdicts if one.device == found.best), None)
    if best is not None:
        on_cpu = "in System RAM" if len(found.verdicts) == 1 else "in System RAM, on no GPU"
        how = ", after reclaim of page cache" if best.needs_reclaim is True else ""
        return f"{name} fits {on_cpu if best.device == CPU else f'on {best.device}'}{how}"
    if split := found.split:
        return f"{name} fits on {len(split.devices)} GPUs: {', '.join(split.devices)}"
    if found.unknown:
        return f"Not known if {name} fits"
    return f"{name} does not fit{'' if exceeds_totals(found.verdicts) else ' right now'}"


def list_facts(request: FitRequest, found: FitAnswer) -> Iterator[str]:
    """Yield what was planned in a few words each: the need, the model, its use."""
    moved = found.need.demand.ram_bytes
    beside = f" and {words.size(moved)} in System RAM" if moved else ""
    yield f"needs {words.size(found.fit.bytes)}{beside}"
    if request.is_size:
        return
    use, shape = request.use, request.shape
    if shape:
        yield f"{shape.parameters:,} parameters"
        yield f"context {choose_context(request.checkpoint, use):,} tokens"
    yield f"batch {use.batch_size:,}"
    yield use.dtype or f"{request.checkpoint.dtype_bytes * 8:.3g} bits a weight"


def group_verdicts(found: Fit) -> Iterator[Verdicts]:
    """Yield the answer of each device, or of many devices in a line for each answer: with the closest of them."""
    is_many = len(found.verdicts) > MAX_LINES
    groups: dict[tuple[str, ...], list[FitVerdict]] = {}
    for one in found.verdicts:
        known = "unknown" if isinstance(one.fits, Absent) else "yes" if one.fits else "no"
        text = {"unknown": "unknown", "no": "does not fit"}.get(known, "fits")
        text = "fits after reclaim" if known == "yes" and one.needs_reclaim is True else text
        groups.setdefault((one.name, known, text, "" if is_many else one.reason), []).append(one)
    for (name, known, text, _), several in groups.items():
        best = max(several, key=spare_of)
        which = "most is left on" if known == "yes" else "least is missing on"
        same = len({one.reason for one in several}) == 1
        reason = best.reason if same or known == "unknown" else f"{which} {best.device}, {best.reason}"
        yield Verdicts(tuple(one.device for one in several), name, known, text, reason)


async def fit(services: PageServices, request: Request) -> Response:
    """Show the form and the answer to a query. Empty fields are removed from the URL by a redirect."""
    given = request.query_params.multi_items()
    fields = {name: value for name, value in given if value}
    if len(fields) != len(given):
        return RedirectResponse("fit?" + urlencode(fields) if fields else "fit", status_code=303)
    if fields and FIT_QUERY not in sys.modules:
        await services.query(FIT_QUERY, IMPORT_SECONDS, import_fit_query)
    snapshot = services.current()
    return _show(services, snapshot, build_form(fields, snapshot, services.pages.thresholds(snapshot)))


async def fit_config(services: PageServices, request: Request) -> Response:
    """Redirect to the query for a config.json."""
    text = (await request.body()).decode("utf-8", "replace")
    try:
        fields = QueryParams(parse_qsl(text, max_num_fields=MAX_FIELDS))
    except ValueError:
        problem = f"the form has more than {MAX_FIELDS} fields: send config only."
        return _show(services, services.current(), FitForm({}, problem=problem))
    refuse_repeated(fields)
    try:
        shape = parse_config_fields(fields.get("config", ""))
    except InvalidInputError as error:
        return _show(services, services.current(), FitForm({}, problem=f"{error}."))
    return RedirectResponse("fit?" + urlencode(shape), status_code=303)


def _show(services: PageServices, snapshot: Snapshot, form: FitForm) -> Response:
    page = services.pages.fit(snapshot, form)
    return HTMLResponse(page, status_code=422 if form.problem else 200)


def import_fit_query() -> bytes:
    """Import the model of a query, with pydantic. Called in a thread: other clients would wait."""
    import_module(FIT_QUERY)
    return b""


def build_form(
    fields: Mapping[str, str],
    snapshot: Snapshot,
    thresholds: Mapping[str, Thresholds] = MappingProxyType({}),
) -> FitForm:
    """Answer a query. Without fields return an empty form, for which pydantic is not imported."""
    if not fields:
        return draw_answer(FitForm(fields), None, snapshot, thresholds)
    from pydantic import ValidationError

    from memwatch_web.api.fit_query import parse_query

    try:
        request = parse_query(fields)
        answered = answer_request(request, snapshot, ALL)
        found = FitForm(fields, answered, facts=tuple(list_facts(request, answered)))
        return draw_answer(found, request, snapshot, thresholds)
    except ValidationError as error:
        problems = [describe_error({**one, "loc": ("query", *one["loc"])}) for one in error.errors()]
        problem = "; ".join(problems[:3])
    except InvalidInputError as error:
        problem = describe_missing(fields) or f"{error}."
    return draw_answer(FitForm(fields, problem=problem), None, snapshot, thresholds)


def describe_missing(fields: Mapping[str, str]) -> str:
    """Return what a model's shape lacks, in the words of the form. Empty if it is complete, or a size is given."""
    if any(name in fields for name in SIZE_FIELDS):
        return ""
    missing = [word for name, word in SHAPE_FIELDS.items() if name not in fields]
    if len(missing) < len(SHAPE_FIELDS):
        return f"The shape lacks: {', '.join(missing)}." if missing else ""
    of_what = f"The name {fields['model']} does not give" if "model" in fields else "This does not give"
    return f"{of_what} the size of a model: load its config.json, give its shape, or give a size."


def draw_answer(
    form: FitForm, request: FitRequest | None, snapshot: Snapshot, thresholds: Mapping[str, Thresholds]
) -> FitForm:
    """Add the machine as it is, with the plan of a request that was answered. Growth is the overview's."""
    maps = build_maps(snapshot, thresholds)
    plans: Mapping[str, Planned] = {}
    sentence = describe_places(maps, {}, "")
    if request and (found := form.answered):
        split: Mapping[str, int] = {}
        if found.fit.split:
            count = len(found.fit.split.devices)
            split = compute_need_here(request.checkpoint, request.use, snapshot, count).parts
        plans, sentence = plan_pools(found, maps, snapshot, printable(form.name), request.use.reserve_bytes, split)
    levels = {one.target: one.level.word for one in snapshot.pressure}
    scene = Scene(levels=levels, plans=plans, alone=True)
    return replace(form, landscape=draw_page(maps, scene), sentence=sentence)


def changed_fields(fields: Mapping[str, str], use: Use) -> dict[str, str]:
    """Return request fields with the use of a proposed change."""
    return {name: value for name, value in fields.items() if name not in USE} | write_parameters(use)


def parse_config_fields(text: str) -> dict[str, str]:
    """Parse a config.json into query fields. Raises InvalidInputError."""
    if not text.strip():
        raise InvalidInputError("config.json is empty: paste the text of a model's config.json")
    config = parse_config(parse_object(text.encode(), "config.json"), "config.json")
    if config.problem:
        raise InvalidInputError(f"config.json: {config.problem}")
    unknown = {"unknown": config.unknown} if config.unknown else {}
    longest = {"max_context": str(config.context)} if config.context else {}
    return write_shape(config.transformer) | {"dtype": config.dtype} | longest | unknown


# Without data: parameters as diffusers counts them, 16 bits each.
PIPELINES = (
    ("SDXL", Pipeline(
        "unet", 2_567_463_684, 5_134_927_368, 817_720_320, 1_635_440_640, 1_389_319_680, 83_653_863, 167_307_726,
        126_484_480, 320, 8, 16, 10, lora_per_rank=1_451_520, vae_tile=1024, vae_32bit=True,
    )),
    ("Flux.1-dev", Pipeline(
        "transformer", 11_901_408_320, 23_802_816_640, 4_885_371_136, 9_770_742_272, 9_524_621_312, 83_819_683,
        167_639_366, 263_192_576, 3072, 16, 16, 24, text_tokens=512, lora_per_rank=1_167_360,
        guidance=False, vae_tile=1024,
    )),
)  # fmt: skip
EXAMPLE_QUERIES = (
    *((name, urlencode({"model": name} | write_shape(shape))) for name, shape in EXAMPLES),
    *((name, urlencode({"model": name} | write_parameters(pipe))) for name, pipe in PIPELINES),
)
