"""Output for readers: tables, advice, figures and the report page, from the results of the layers below."""
