def render_gallery() -> str:
    return ""
