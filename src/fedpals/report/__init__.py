"""What people look at: tables, advice and figures. Computes nothing that the layers below do not."""
