"""Views of a record for people and CI: tables, pages, pictures, JSON.  They read the record and measure nothing."""
