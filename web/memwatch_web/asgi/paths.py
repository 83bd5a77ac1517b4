"""Paths that have rules besides their rows in the tables of routes: answered at once, open, or for programs."""

METRICS = "/metrics"
HEALTHZ, READYZ = "/healthz", "/readyz"
OPENAPI = "/openapi.json"
API = "/api/"
MARKS, REPORTS, LEASES = API + "v1/marks", API + "v1/reports", API + "v1/leases"
FIT_PAGE, LIVE, STATIC = "/fit", "/live", "/static/"

# For load balancers and orchestrators, which have no credentials. The responses contain no memory data.
OPEN_PATHS = frozenset({HEALTHZ, READYZ})
# POST paths that change nothing.
QUESTIONS = frozenset({FIT_PAGE})
# Programs may mark, report and lease for processes of their own user. The handlers compare the users.
PROGRAM_PATHS = frozenset({MARKS, REPORTS, LEASES})


def is_for_programs(path: str) -> bool:
    return path in PROGRAM_PATHS or path.startswith(f"{LEASES}/")
