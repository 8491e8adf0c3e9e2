"""HTML pages and the SVG charts on them."""
