def page(results: dict) -> str:
    return ""
