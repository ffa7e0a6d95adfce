"""placeholder"""


def evaluate_claims(t):
    return []


def write_claims(p, c):
    pass
