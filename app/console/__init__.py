"""The console: pages for operators at ``/`` and ``/console``, and a tenant's own at ``/tenant``.

``shell`` is what all pages share (sign-in, headers, errors), ``page`` what a page is, ``live``
how it is kept up to date, ``assets`` where scripts and styles come from. Every other module is a
page: what it reads, and what can be done there. Pages read the same tables as the API and
change rows by the same statements; they hold no state of their own.
"""
