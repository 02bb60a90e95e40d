"""What rules, curves and derivatives must give, known from elsewhere than multigrad."""
