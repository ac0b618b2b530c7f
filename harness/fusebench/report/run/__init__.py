"""Views of one run: terminal table, Markdown and HTML's rows, pull request, pages, JSON, CI formats."""
