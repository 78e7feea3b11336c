// The cluster that bench/scale has simulated, which SimGrid asks for: hosts on one switch, each by a link of its own, and cores for its ranks.
// THINWIRE_CLUSTER says, apart by spaces: hosts, cores a host, flops of a core, bytes a second and seconds of a link (a message crosses two), the same
// between ranks of a host.
#include <simgrid/s4u.hpp>

#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>

namespace sg4 = simgrid::s4u;

extern "C" void load_platform(const sg4::Engine& engine);

void load_platform(const sg4::Engine&) {
  const char* given = std::getenv("THINWIRE_CLUSTER");
  int hosts = 0, cores = 0;
  double flops = 0, rate = 0, latency = 0, rate_within = 0, latency_within = 0;
  if (!(std::istringstream(given ? given : "") >> hosts >> cores >> flops >> rate >> latency >> rate_within >> latency_within))
    throw std::invalid_argument("THINWIRE_CLUSTER: seven numbers are wanted");
  sg4::NetZone* cluster = sg4::create_star_zone("cluster");
  for (int i = 0; i < hosts; ++i) {
    const std::string name = "host" + std::to_string(i);
    sg4::Host* host = cluster->create_host(name, flops)->set_core_count(cores)->seal();
    sg4::SplitDuplexLink* link = cluster->create_split_duplex_link(name + "-link", rate);
    // Messages leave one after another, as a TCP connection's do; else all that are on their way share the link, and arrive when the last one does.
    link->set_latency(latency)->set_concurrency_limit(1)->seal();
    const sg4::Link* within =
        cluster->create_link(name + "-within", rate_within)->set_latency(latency_within)->set_sharing_policy(sg4::Link::SharingPolicy::FATPIPE)->seal();
    cluster->add_route(host->get_netpoint(), nullptr, nullptr, nullptr, {sg4::LinkInRoute(link, sg4::LinkInRoute::Direction::UP)}, true);
    cluster->add_route(host->get_netpoint(), host->get_netpoint(), nullptr, nullptr, {sg4::LinkInRoute(within)}, false);
  }
  cluster->seal();
}
