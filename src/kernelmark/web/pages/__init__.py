"""The data of each page as plain JSON values: what a page shows, its JSON twin is.

A page is a dict with a `title` and what its template shows. Tables have `columns` (key, title,
kind) and `rows` of raw values by key, in seconds and bytes; `links` of a row are by key too.
Figures are Vega-Lite specs; the template draws them.
"""
