"""What lives on a terminal: progress, pager, `top`. The only home of Textual."""
