"""The data of each page as plain JSON values; the JSON twin of a page is this data.

A page is a dict with a `title` and the values that its template shows. Tables have `columns` (key,
title, kind) and `rows` of raw values by key, in seconds and bytes; `links` of a row are by key too.
Figures are Vega-Lite specs, rendered by the template.
"""
