"""What drivers and vendor tools report, as plain records. No judgement."""
