"""Hide secrets in command lines, URLs and sentences.

The forms of secrets come first: names, keys with known beginnings, receivers, random text. There is no other list.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words that name a secret, as a part of a longer name: db-password, apiKeyOfAda.
WORDS = _words(
    "password passwd passphrase passcode pwd secret credential credentials apikey authkey accesskey secretkey "
    "privatekey authorization"
)
# The same as the last word: HF_TOKEN, but not token_usage.
LAST_WORDS = _words("token pass pw auth bearer cookie creds")
# Ends of names without separators: PGPASSWORD, mysqlpwd.
ENDINGS = (
    *("password", "passwd", "passphrase", "pwd", "secret", "token", "apikey", "secretkey", "accesskey"),
    *("sshpass", "keypass", "storepass", "dbpass", "rootpass", "userpass", "rootpw", "requirepass"),
)
KEY_KINDS = frozenset({"api", "access", "secret", "private", "auth", "encryption", "signing", "master", "account"})
CODE_KINDS = frozenset({"access", "auth", "license", "licence", "activation", "recovery"})
# A name with such an end tells where the secret is, its size or its kind: --password-file, --eos-token-id.
HARMLESS_ENDS = _words(
    "file path dir jar stdin prompt length count limit id ids index threshold budget size type mode method "
    "ratio ttl timeout interval env header url uri provider class level backend plugin parser"
)
# With one of these in front, a name is a switch without a value, or a token of a language model.
SWITCHES = _words("no disable enable require use skip allow with without has trust ask")
MODEL_TOKENS = _words("eos bos pad unk sep cls mask stop image audio video special think start end num")
# Values that are no secret, whatever the name: --auth none, --require-auth true.
PLAIN_VALUES = _words(
    "true false yes no none null on off auto always never required optional basic digest kerberos"
)
# Names that are often harmless: their value is a secret if it is random, hexadecimal included.
WEAK_NAMES = _words("key keys sig signature salt session otp license licence jwt sas credential code")

# Words of a command after which its other arguments are secrets, by program.
SECRET_ARGUMENTS = {
    "wandb": _words("login"), "vault": _words("login"), "ngrok": _words("authtoken add-authtoken"),
    "wpa_passphrase": _words("wpa_passphrase"), "htpasswd": _words("htpasswd"), "mc": _words("set"),
}  # fmt: skip
# Positional words whose next argument is a secret.
POSITIONAL_NAMES = frozenset({"password", "passwd", "passphrase", "aws_secret_access_key", "aws_session_token"})
# Options that are secrets only of these programs, with or without a blank before the value.
SHORT_OPTIONS = {
    **dict.fromkeys(("mysql", "mysqldump", "mysqladmin", "mariadb", "mariadb-dump", "mariadb-admin"), r"(-p)(.*)"),
    **dict.fromkeys(("sshpass", "mongosh", "mongo", "mongodump", "mongorestore", "7z", "7za"), r"(-p)(.*)"),
    "curl": r"(-[a-zA-Z#]{0,8}?u|-b|--user|--proxy-user|--cookie)(?:=?(.*))",
    **dict.fromkeys(("http", "https", "xh"), r"(-a|--auth)(?:=?(.*))"),
    "redis-cli": r"(-a)(.*)", "smbclient": r"(-U)(.*)", "ldapsearch": r"(-w)(.*)", "ldapmodify": r"(-w)(.*)",
    **dict.fromkeys(("mosquitto_pub", "mosquitto_sub", "unzip", "zip", "ipmitool", "sqlcmd"), r"(-P)(.*)"),
    **dict.fromkeys(("snmpwalk", "snmpget", "snmpbulkwalk"), r"(-[AXc])(.*)"),
    **dict.fromkeys(("xfreerdp", "xfreerdp3", "wlfreerdp"), r"(/p:)(.*)"),
    # `docker run -p` is a port: only after `login`.
    **dict.fromkeys(("docker", "podman", "nerdctl", "helm", "az", "oras", "crane"), r"(-p)(.*)"),
}  # fmt: skip
AFTER_LOGIN = frozenset({"docker", "podman", "nerdctl", "helm", "az", "oras", "crane"})

# Keys with a known beginning. A digit or a capital has to follow: sk-learn-pipeline-name is no key.
KEYS = re.compile(
    r"(?<![A-Za-z0-9])(?:(?="
    r"hf_|gh[opsur]_|[spr]k_(?:live|test)_|AKIA|ASIA|AIza|gsk_|r8_|npm_|shp(?:at|ss|ca)_|dop_v1_|do[or]_v1_|dapi[0-9a-f]{8}|"
    r"pplx-|xai-|tvly-|tgp_v1_|fw_|csk-|rpa_|jina_|ntn_|lin_api_|sq0[ac][ts]p-|tk_|phx_|nfp_|sbp_|key-[0-9a-f]{32}"
    r")(?=[A-Za-z_\-]{0,24}?(?:[0-9]|[a-z][A-Z]))[A-Za-z0-9]{2,5}[_-]?(?:(?:live|test|v1|api)_)?[A-Za-z0-9]{14,}|"
    r"(?:github_pat_|gl(?:pat|dt|rt|ptt|cbt|oas|soat|imt|agent|ft|ffct)-|sk-|xox[abceoprs]-|xapp-|nvapi-|wandb_v1_|"
    r"dckr_[op]at_|pypi-AgE|ya29\.|GOCSPX-|SG\.|tskey-|hv[sb]\.|lsv2_[a-z]{2}_|glsa_|glc_|whsec_|figd_|sntry[su]_|ops_eyJ|dp\.[ps]t\.|AGE-SECRET-KEY-|eyJ|ATATT3x)"
    r"(?=[A-Za-z_.+/\-]{0,60}?(?:[0-9]|[a-z][A-Z]))[A-Za-z0-9_.+/\-]{12,}={0,2}|"
    r"(?:bot)?[0-9]{6,12}:[A-Za-z0-9_-]{30,})"
)
PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*", re.DOTALL)

# Receivers whose address is the secret: nothing of the path is shown.
RECEIVERS = _words(
    "alert.victorops.com api.telegram.org chat.googleapis.com cronitor.link events.pagerduty.com "
    "hooks.slack.com hooks.zapier.com logic.azure.com make.com maker.ifttt.com hc-ping.com nosnch.in ntfy.sh "
    "oapi.dingtalk.com open.feishu.cn open.larksuite.com outlook.office.com pipedream.net powerplatform.com "
    "pushover.net qyapi.weixin.qq.com simplepush.io uptime.betterstack.com uptime.betteruptime.com "
    "webexapis.com webhook.office.com webhook.site "
)
# A part of any path after which the rest is the secret: /hooks/…, /api/webhooks/….
SECRET_FOLDERS = _words("hook hooks webhook webhooks webhookb2 incomingwebhook heartbeat integration")
# Schemes of Apprise, whose URLs consist of tokens.
APPRISE_SCHEMES = _words(
    "slack discord tgram msteams workflows ntfy ntfys pover pbul gchat mmost mmosts rocket rockets matrix "
    "matrixs pagerduty opsgenie twilio gotify gotifys wxteams webex ifttt prowl sendgrid mailgun zulip line "
    "lark feishu dingtalk wecombot bark barks spush victorops flock guilded signal signals threema vonage "
    "clicksend bulksms schan psafer pushed synology synologys nctalk nctalks mailto mailtos pushplus "
    "pagertree spike homeassistant hassio hassios"
)

CAPITALS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
NOT_IN_WORD = re.compile(r"[^A-Za-z0-9]+")
# Digests, commits, ids of containers, UUIDs of GPUs: they name a thing, and are shown.
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]+")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
MIN_RANDOM, MIN_RANDOM_LETTERS, MIN_WEAK = 20, 32, 16
# Separators that random text may contain. Names have one every few letters, base64url one in 32.
RUN = re.compile(rf"[A-Za-z0-9+/_\-]{{{MIN_RANDOM},}}={{0,2}}")
PART = re.compile(rf"[A-Za-z0-9]{{{MIN_RANDOM},}}")
SEPARATORS_PER_LETTER = 1 / 8
# The pairs of letters that make up nine tenths of technical English. Random letters have a quarter of them.
PAIRS = _words(
    "ab ac ad ag ai al am an ap ar as at au be bl bo by ca ce ch ck co ct da de di do dr ds ea ec ed ee ef eg "
    "el em en ep er es et ev ex fa fi fo fr ge gi gp gr ha hd he hi ho ib ic id ie if ig il im in io ir is it "
    "iv ke la ld le li ll lo ls ma md me mi mo mp mw na nc nd ne ng ni no ns nt nu oc od of ol om on oo op or "
    "os ot ou ow pa pe pl po pr pt pu ra re ri rn ro rs rt ru rv ry sa se sh si so ss st su sy ta tc te th ti "
    "to tr ts tt ue ul un ur us ut va ve vi wa we wh wi xt ys yt"
)
# Of random texts with capitals 0.3 % have fewer changes between kinds of characters, without capitals 1 %. Names
# like Llama33NemotronSuper49Bv15 have up to 0.45, and three quarters of their pairs are common.
MIN_CHANGES, MIN_CHANGES_MIXED, MIN_CHANGES_LETTERS, MAX_CHANGES_OF_NAMES = 0.15, 0.25, 0.35, 0.5
MAX_COMMON_PAIRS, MAX_COMMON_PAIRS_JOINED = 0.55, 0.45


def is_secret_name(name: str) -> bool:
    words = [part.lower() for part in NOT_IN_WORD.split(CAPITALS.sub("_", name)) if part]
    if not words or words[-1] in HARMLESS_ENDS or words[0] in SWITCHES or not MODEL_TOKENS.isdisjoint(words):
        return False
    if not WORDS.isdisjoint(words) or words[-1] in LAST_WORDS or words[-1].endswith(ENDINGS):
        return True
    return any(
        (kind in KEY_KINDS and word in ("key", "keys")) or (kind in CODE_KINDS and word in ("code", "key"))
        for kind, word in pairwise(words)
    )


def is_weak_name(name: str) -> bool:
    words = [part.lower() for part in NOT_IN_WORD.split(CAPITALS.sub("_", name)) if part]
    return bool(words) and words[-1] in WEAK_NAMES


def is_weak_secret(value: str) -> bool:
    """Return True for a value of a weak name that is hexadecimal or random, and not a path."""
    return len(value) >= MIN_WEAK and "/" not in value[:2] and any(map(str.isdigit, value)) and (
        bool(_HEXADECIMAL.fullmatch(value) or _UUID.fullmatch(value)) or has_random(value)
    )  # fmt: skip


def is_path(value: str) -> bool:
    return value.startswith(("/", "./", "../", "~/")) and len(value) > len("~/x")


def has_random(text: str) -> bool:
    """Return True if a part of the text looks like the output of a random generator. Linear in its length."""
    return any(is_random(found[0]) for found in RUN.finditer(text))


def is_random(run: str) -> bool:
    if _HEXADECIMAL.fullmatch(run) or _UUID.search(run):
        return False
    letters = NOT_IN_WORD.sub("", run)
    # Names of pods and of many files have separators, but no capitals.
    is_joined = len(run) - len(letters) <= 1 + len(run) * SEPARATORS_PER_LETTER and run.lower() != run
    is_mixed = is_joined and _is_mixed(letters, MAX_COMMON_PAIRS_JOINED)
    return is_mixed or any(_is_mixed(part, MAX_COMMON_PAIRS) for part in PART.findall(run))


def _is_mixed(text: str, max_common: float) -> bool:
    """Judge by the changes between capitals, small letters and digits, and by the pairs of letters."""
    if len(text) < MIN_RANDOM or _HEXADECIMAL.fullmatch(text):
        return False
    kinds = [_kind(char) for char in text]
    if len(set(kinds)) < 2 or (2 not in kinds and len(kinds) < MIN_RANDOM_LETTERS):
        return False
    changes = sum(one != other for one, other in pairwise(kinds)) / (len(kinds) - 1)
    if 2 in kinds and changes >= MAX_CHANGES_OF_NAMES:
        return True
    pairs = [one + other for one, other in pairwise(text.lower()) if one.isalpha() and other.isalpha()]
    common = sum(pair in PAIRS for pair in pairs) / len(pairs) if pairs else 0
    least = MIN_CHANGES if 1 not in kinds else MIN_CHANGES_MIXED if 2 in kinds else MIN_CHANGES_LETTERS
    return changes >= least and common < max_common


def _kind(char: str) -> int:
    return 0 if char.islower() else 1 if char.isupper() else 2


HIDDEN = "***"
NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")
SEPARATORS = re.compile(r"([=:])")
SPACES = re.compile(r"(\s+)")
# Between them a path may begin: -v /data:/models, --x=/y, {"a":"/b"}.
MARKS = re.compile(r"([=:,;\"'(){}\[\]<>|&@?\s]+)")
# A file's name ends the text: shard-aB3dE5fG.parquet. Keys with dots have known beginnings.
EXTENSION = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,11}(?![A-Za-z0-9_\-])")
WEAK_VALUE = re.compile(r"(?<![A-Za-z0-9_.\-])([A-Za-z0-9_.\-]{1,64})([\"']?[=:][\"']?)([A-Za-z0-9+/_.\-]{16,}=*)")
# ada:password@tcp(db:3306)/x. Not the digest of an image: name:tag@sha256:….
LOGIN = re.compile(r"(?<![\w.+\-])[\w.+\-]{1,128}:[^@/\s:]{1,256}@(?!sha256:)(?=[\w(\[])")
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*$")
QUERY_MARKS = re.compile(r"([&;#?])")
# Names of query values that identify a thing: they may be hexadecimal.
THINGS = frozenset(["ref", "rev", "revision", "commit", "sha", "sha256", "digest", "uuid", "id", "hash", "etag"])
MIN_HEXADECIMAL = 16
_HEX_ID = re.compile(rf"[0-9a-fA-F-]{{{MIN_HEXADECIMAL},}}")
_OPTIONS = {program: re.compile(pattern, re.DOTALL) for program, pattern in SHORT_OPTIONS.items()}


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with each secret replaced. Linear in their length.

    An option named like a secret hides the argument after it, even one that looks like an option.
    """
    reader = _CommandReader()
    return [reader.redact(argument) for argument in arguments]


def redact_text(text: str) -> str:
    """Hide the secrets of URLs and known kinds of keys in a sentence. Names of secrets hide nothing here."""
    if "://" not in text and "@" not in text and not KEYS.search(text):
        return text
    return "".join(part if part.isspace() else _redact_url_and_keys(part) for part in SPACES.split(text))


def _redact_url_and_keys(word: str) -> str:
    shown = redact_urls(word)
    return KEYS.sub(HIDDEN, shown if "://" in shown else LOGIN.sub(f"{HIDDEN}@", shown, count=1))


class _CommandReader:
    """Reads the words of a command in order: a word may tell that the next one is a secret."""

    def __init__(self) -> None:
        self._program = ""
        self._is_first = True
        self._has_login = self._hides_next = self._checks_next = self._hides_rest = False

    def redact(self, argument: str) -> str:
        """Redact an argument, which may be a whole command for a shell."""
        if self._hides_next or self._checks_next:
            return self._redact_value(argument)
        if SPACES.search(argument):
            return self._redact_command(PRIVATE_KEY.sub(HIDDEN, argument))
        shown, is_cut = self._redact_word(argument)
        self._hides_next = self._hides_next or (is_cut and argument.endswith((":", "=")))
        return shown

    def _redact_value(self, value: str) -> str:
        hides, self._hides_next, self._checks_next = self._hides_next, False, False
        if hides:
            return redact_value(value)
        return HIDDEN if is_weak_secret(value) else self.redact(value)

    def _redact_command(self, argument: str) -> str:
        """Show nothing after a word that names a secret: where its value ends depends on the quotes of a shell."""
        parts, inner = SPACES.split(argument), _CommandReader()
        for index in range(0, len(parts), 2):
            word = parts[index]
            if inner._checks_next:
                parts[index] = inner._redact_value(word)
                continue
            parts[index], is_cut = inner._redact_word(word)
            hides = inner._hides_next or (is_cut and (word.endswith((":", "=")) or _is_open_quote(word)))
            if hides and index + 1 == len(parts):
                self._hides_next = not _is_open_quote(word)
            elif hides and (is_cut or redact_value(parts[index + 2]) == HIDDEN):
                return f"{''.join(parts[: index + 1])} {HIDDEN}"
            inner._hides_next = False
        return "".join(parts)

    def _redact_word(self, word: str) -> tuple[str, bool]:
        """Redact a word without spaces. The second value is True if it names a secret before = or a colon."""
        is_first, self._is_first = self._is_first, False
        self._follow_program(word)
        if self._hides_rest and not word.startswith("-"):
            return HIDDEN, False
        self._hides_rest = self._hides_rest or word in SECRET_ARGUMENTS.get(self._program, ())
        if option := self._match_option(word):
            name, value = option
            self._hides_next = not value
            return name + (HIDDEN if value else ""), False
        self._hides_next = _names_secret(word) or (word.lower() in POSITIONAL_NAMES and not is_first)
        self._checks_next = word.startswith("-") and "=" not in word and is_weak_name(word)
        return redact_word(word)

    def _follow_program(self, word: str) -> None:
        name = word.rpartition("/")[2]
        if name in _OPTIONS or name in SECRET_ARGUMENTS:
            self._program, self._has_login, self._hides_rest = name, False, False
        self._has_login = self._has_login or word == "login"

    def _match_option(self, word: str) -> tuple[str, str] | None:
        pattern = _OPTIONS.get(self._program)
        if pattern is None or (self._program in AFTER_LOGIN and not self._has_login):
            return None
        found = pattern.fullmatch(word)
        return (found[1], found[2]) if found else None


def redact_value(value: str) -> str:
    """Redact the value of a secret name. Words that switch, and paths of files, are shown."""
    plain = value.strip("\"'").lower() in PLAIN_VALUES
    path = is_path(value) and not _has_random_part(value)
    return value if plain or path or not value else HIDDEN


def _has_random_part(path: str) -> bool:
    return any(has_random(part) for part in path.split("/"))


def redact_word(word: str) -> tuple[str, bool]:
    pieces = SEPARATORS.split(word)
    for index in range(0, len(pieces) - 1, 2):
        name = NOT_IN_NAME.split(pieces[index].rstrip("\"'"))[-1]
        if is_secret_name(name) and not pieces[index + 2].startswith("//"):
            rest = "".join(pieces[index + 2 :])
            return redact_parts("".join(pieces[: index + 2])) + redact_value(rest), True
    return redact_parts(word), False


def redact_parts(word: str) -> str:
    """Redact URLs, logins, known kinds of keys, values of weak names and random text."""
    word = _redact_url_and_keys(word)
    return word if "://" in word else _redact_random(WEAK_VALUE.sub(_redact_weak, word))


def _redact_weak(found: re.Match[str]) -> str:
    hides = is_weak_name(found[1]) and is_weak_secret(found[3])
    return f"{found[1]}{found[2]}{HIDDEN if hides else found[3]}"


def _redact_random(word: str) -> str:
    parts = MARKS.split(word) if len(word) >= MIN_RANDOM else [word]
    return "".join(part if is_path(part) else _redact_runs(part) for part in parts)


def _redact_runs(text: str) -> str:
    def change(found: re.Match[str]) -> str:
        is_file = EXTENSION.match(text, found.end())
        return found[0] if is_file or not is_random(found[0]) else HIDDEN

    return RUN.sub(change, text)


def redact_urls(word: str) -> str:
    """Redact the URLs in a word: logins, addresses of receivers, tokens in the path, values of the query."""
    if "://" not in word:
        host, slash, _ = word.partition("/")
        return f"{host}/{HIDDEN}" if slash and _is_receiver(host) else word
    first, *others = word.split("://")
    found, before = [first], first
    for rest in others:
        scheme = SCHEME.search(before[-32:])
        found.append(_redact_url(scheme[0].lower() if scheme else "", rest))
        before = rest
    return "://".join(found)


def _redact_url(scheme: str, rest: str) -> str:
    """Redact a URL without its scheme."""
    if scheme in APPRISE_SCHEMES:
        return HIDDEN
    login, host, tail = _split_url(rest)
    if _is_receiver(host):
        return f"{login}{host}{tail[:1] and f'/{HIDDEN}'}"
    path, mark, query = _partition_query(tail)
    return f"{login}{host}{_redact_path(path)}{mark}{_redact_query(query)}"


def _split_url(rest: str) -> tuple[str, str, str]:
    """Return the redacted login, the host with its port, and the rest."""
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    port = rest[:end].rpartition(":")[2]
    if "@" not in rest[:end] and ":" in rest[:end] and "@" in rest and not port.isdecimal() and "]" not in port:
        end = rest.rfind("@") + 1  # a password with a slash
        end = min((at for at in (rest.find(char, end) for char in "/?#") if at >= 0), default=len(rest))
    login, mark, host = rest[:end].rpartition("@")
    return f"{HIDDEN if login else ''}{mark}", host, rest[end:]


def _is_receiver(host: str) -> bool:
    name = host.partition(":")[0].lower()
    return name.startswith("ntfy.") or any(name == one or name.endswith(f".{one}") for one in RECEIVERS)


def _partition_query(tail: str) -> tuple[str, str, str]:
    at = min((at for at in map(tail.find, "?#") if at >= 0), default=len(tail))
    return tail[:at], tail[at : at + 1], tail[at + 1 :]


def _redact_path(path: str) -> str:
    parts = path.split("/")
    for index, part in enumerate(parts[:-1]):
        if part.lower() in SECRET_FOLDERS and any(parts[index + 1 :]):
            return "/".join([*map(_redact_runs, parts[: index + 1]), HIDDEN])
    return "/".join(map(_redact_runs, parts))


def _redact_query(query: str) -> str:
    return "".join(map(_redact_query_value, QUERY_MARKS.split(query)))


def _redact_query_value(pair: str) -> str:
    name, mark, value = pair.partition("=")
    if not value:
        return _redact_runs(pair)
    hides = (is_secret_name(name) and redact_value(value) == HIDDEN) or is_weak_name(name)
    hides = hides or (name.lower() not in THINGS and bool(_HEX_ID.fullmatch(value)) and not value.isdecimal())
    return f"{name}{mark}{HIDDEN if hides else _redact_runs(value)}"


def _names_secret(word: str) -> bool:
    """Return True for an option whose value is the next word: --token, but not token."""
    return word.startswith("-") and is_secret_name(word.lstrip("-")) and not NOT_IN_NAME.search(word)


def _is_open_quote(word: str) -> bool:
    return word.count("'") % 2 == 1 or word.count('"') % 2 == 1
