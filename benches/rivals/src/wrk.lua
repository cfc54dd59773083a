-- Asks for the objects of a list of paths in turn. wrk stops by time, not by count, so what was delivered follows from the
-- number of answers: one thread gets them in the order of the list, round and round.

local requests = {}
local sent = 0

function init(args)
  for path in io.lines(args[1]) do
    requests[#requests + 1] = wrk.format("GET", path)
  end
end

function request()
  sent = sent % #requests + 1
  return requests[sent]
end

-- Its count of timeouts is left out: an answer that took two seconds was slow, and came.
function done(summary, latency, rates)
  local errors = summary.errors
  io.write(string.format("\nfuelrail %d %d %d %d\n", summary.requests, summary.duration,
    errors.connect + errors.read + errors.write, errors.status))
end
