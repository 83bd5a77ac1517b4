"""Command lines of servers: the program, its module, and its options. Options in files and variables are others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from memwatch.core.engines.text import number_in

# Arguments of an interpreter before that of its module.
MAX_BEFORE_MODULE = 12
TRUE, FALSE = ("1", "true", "on", "yes", "enabled"), ("0", "false", "off", "no", "disabled")
FULL_WINDOWS, NO_FULL_WINDOWS = "--swa-full", "--no-swa-full"
# Also the loader of llamafiles, `ape` or `.ape-1.10`, which has the file as its first argument.
INTERPRETER = re.compile(r"(?:python|pypy)[0-9.]*|\.?ape(?:-[0-9.]+)?")


class Command(Struct, frozen=True):
    """The arguments of a process, the program first. Empty if they may not be read.

    `from_file`: options in a file that the arguments name. `from_environment`: those that variables of the process
    set, None if its environment is not known. The command line comes before the file, the file before variables.

    Long options are found by their names with `-`: vLLM (FlexibleArgumentParser), llama.cpp (common/arg.cpp) and
    TensorRT-LLM take `_` for it as well.
    """

    argv: tuple[str, ...] = ()
    from_file: tuple[str, ...] = ()
    from_environment: tuple[str, ...] | None = None

    @property
    def program(self) -> str:
        return base_name(self.argv[0]) if self.argv else ""

    @property
    def path(self) -> str:
        """Return the program, or the script that an interpreter runs, as it is named."""
        return self._words[0] if self._words else ""

    @property
    def script(self) -> str:
        """Return the base name of the program, or of the script that an interpreter runs."""
        return base_name(self.path)

    @property
    def folder(self) -> str:
        """Return the base name of the folder of the program or script, empty if it is named without one."""
        return base_name(self.path.rpartition("/")[0])

    @property
    def subcommand(self) -> str:
        """Return the argument after the program or the script: `serve` of `vllm serve MODEL`."""
        return self._words[1] if len(self._words) > 1 else ""

    @property
    def _words(self) -> tuple[str, ...]:
        start = 1 if INTERPRETER.fullmatch(self.program) else 0
        while self.argv[start : start + 1] and self.argv[start].startswith("-"):
            start += 1
        return self.argv[start : start + 2]

    @property
    def module(self) -> str:
        """Return the module after `-m` of an interpreter."""
        return self._after("-m", self.argv[:MAX_BEFORE_MODULE]) if INTERPRETER.fullmatch(self.program) else ""

    def has(self, *names: str) -> bool:
        return any(_with_dashes(one) in names for one in self._options)

    def last_of(self, *names: str) -> str:
        """Return the last of these flags, empty without. Of `--flag` and `--no-flag`, that one counts."""
        return next((one for one in map(_with_dashes, reversed(self._options)) if one in names), "")

    def has_option(self, name: str) -> bool:
        """Return True if an option is given, as `--option VALUE` or `--option=VALUE`."""
        return any(_with_dashes(one.partition("=")[0]) == name for one in self._options)

    def option(self, *names: str) -> str:
        """Return the value of the last of these options, written as two arguments or with `=`; empty without."""
        return next(reversed(self.values_of(*names)), "")

    def values_of(self, *names: str) -> list[str]:
        """Return the values of all of these options, in their order."""
        found = []
        options = self._options
        for at, argument in enumerate(options):
            name, equals, value = argument.partition("=")
            if _with_dashes(name) in names:
                found.append(value if equals else next(iter(options[at + 1 : at + 2]), ""))
        return found

    @property
    def _options(self) -> tuple[str, ...]:
        """Return the options of variables and of the file, then the arguments: the last one of a name counts."""
        before = (self.from_environment or ()) + self.from_file
        return before + self.argv if before else self.argv

    @property
    def cache_types(self) -> tuple[str, str]:
        """Return the formats of keys and values that are set for a llama-server."""
        return self.option("--cache-type-k", "-ctk"), self.option("--cache-type-v", "-ctv")

    @property
    def ignores_windows(self) -> bool:
        """Return True if a llama-server keeps all tokens of layers with a window."""
        return self.last_of(FULL_WINDOWS, NO_FULL_WINDOWS) == FULL_WINDOWS

    def number(self, *names: str) -> int | None:
        return number_in(self.option(*names))

    def word_after(self, word: str) -> str:
        """Return the argument after a word such as `serve`, empty if that is an option."""
        found = self._after(word, self.argv)
        return "" if found.startswith("-") else found

    def _after(self, word: str, argv: Sequence[str]) -> str:
        return argv[argv.index(word) + 1] if word in argv[:-1] else ""


# A draft model proposes tokens to vLLM or SGLang. Its layers are in their KV cache, or it has a separate one.
DRAFT_CACHE = "The KV cache of its draft model is counted in the rest."
# Why a server is not asked.
FURTHER_NODE = "It is a part of a server on several nodes ({option}): the first node has the API and the figures."
GRPC_ONLY = "It listens for gRPC only, which is not asked."
UNIX_SOCKET = "It listens on a Unix socket ({path}), which is not asked."


class Variable(Struct, frozen=True):
    """A variable that means the same as an option. With `off` it is a flag: `off` is the option for "false"."""

    option: str
    off: str = ""


# Those that decide on the bytes of a token in a llama-server, also in one that Ollama starts.
CACHE_VARIABLES: Mapping[str, Variable] = {
    "LLAMA_ARG_CACHE_TYPE_K": Variable("--cache-type-k"),
    "LLAMA_ARG_CACHE_TYPE_V": Variable("--cache-type-v"),
    "LLAMA_ARG_SWA_FULL": Variable(FULL_WINDOWS, NO_FULL_WINDOWS),
}


# The port of the metrics of a worker of NVIDIA Dynamo, which has no option for it.
DYNAMO_VARIABLES: Mapping[str, Variable] = {"DYN_SYSTEM_PORT": Variable("--port")}


def options_of(variables: Mapping[str, Variable], environment: Iterable[str]) -> tuple[str, ...]:
    """Return the options that variables set, such as NAME=VALUE."""
    return tuple(option for one in environment for option in _options_of(variables, *one.partition("=")[::2]))


def _options_of(variables: Mapping[str, Variable], name: str, value: str) -> Iterator[str]:
    variable = variables.get(name)
    if variable is None or not value:
        return
    if not variable.off:
        yield from (variable.option, value)
    elif value.lower() in TRUE + FALSE:
        yield variable.option if value.lower() in TRUE else variable.off


def _with_dashes(option: str) -> str:
    """Return the name of a long option with `-` for `_`."""
    return option.replace("_", "-") if option.startswith("--") else option


def base_name(path: str) -> str:
    return path.rpartition("/")[2]


# Every command line of an engine has one of these. Each begins with a letter, which is compared before all else:
# the search takes 1 µs for a short command line, and 20 µs for 700 bytes, not 68 as with a leading \b (November
# 2026). Splitting it and comparing its words with each kind takes 12 µs. A build starts hundreds of processes a
# second.
MENTION = re.compile(
    rb"a(?:phrodite|tom\.entrypoints)|d(?:ynamo-run|ynamo\x00run)|e(?<![^/\x00]e)xo(?:\x00|$)"
    rb"|f(?:astdeploy|astchat\.serve|(?<!\wf)lm\x00serve)|huggingfaceserver|infinity_emb|k(?:oboldcpp|transformers)"
    rb"|l(?:lama|lmster|m-studio|mdeploy|ocal-ai|ightllm)|m(?:lx_v?lm|lc_llm|lc_chat|istralrs|aga_transformer)"
    rb"|m(?:ii\.entrypoints|(?<!\wm)ax(?:-pipelines|\.entrypoints\.pipelines)?\x00serve)"
    rb"|n(?:im_llm_sdk|(?<!\wn)exa\x00serve)|o(?:penllm|(?<!\wo)vms\b)|rtp[-_]llm|sglang"
    rb"|t(?:ext-generation|ext-embeddings|rtllm|rtserver|ensorrt_llm|riton|(?<!\wt)ransformers\x00serve)"
    rb"|t(?i:abbyapi)|T(?i:abbyapi)|vllm|xinference|\.gguf\b"
)


def may_start_engine(arguments: bytes) -> bool:
    """Return False if these arguments, as the kernel gives them, start no engine."""
    return MENTION.search(arguments) is not None
