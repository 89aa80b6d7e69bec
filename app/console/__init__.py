"""The console: pages for operators at ``/`` and ``/console``, and a tenant's own at ``/tenant``.

Pages read the same tables as the API and change rows by the same statements.
"""
