"""Forms of secrets: names, keys with known beginnings, receivers, random text. There is no other list."""

from __future__ import annotations

import re
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
