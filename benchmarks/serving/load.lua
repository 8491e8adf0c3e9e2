-- One body, sent again and again; the end prints one line of JSON.
local file = io.open(os.getenv("BODY"), "rb")
wrk.method = "POST"
wrk.body = file:read("*all")
file:close()
for line in string.gmatch(os.getenv("FIELDS"), "[^\n]+") do
  local name, value = string.match(line, "^(.-): (.*)$")
  wrk.headers[name] = value
end
done = function(summary, latency, requests)
  local e = summary.errors
  print(string.format(
    'RESULT {"requests": %d, "seconds": %f, "refused": %d, "failures": %d, "p50": %f, "p99": %f}',
    summary.requests, summary.duration / 1e6, e.status, e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50) / 1e6, latency:percentile(99) / 1e6))
end
